// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_EXPERT_PARALLEL_COMBINE_H_
#define ANABRANCH_COMM_EXPERT_PARALLEL_COMBINE_H_

#include <cstdint>
#include <span>

#include "base/executor.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "comm/expert_parallel/plan.h"
#include "comm/transport.h"

namespace anabranch::expert_parallel {

// The transpose of dispatch: each token fetches its slots' rows from their owners and adds them up.
//   y[t, :] = sum over slots j in ascending expert order of rows_of(slot_rank[t, j])[slot_row[t,
//   j], :] weights[t, j] = row_weights_of(slot_rank[t, j])[slot_row[t, j]], 0 for a slot without a
//   row Layout    row-major; outputs overlap nothing. Empty     as for dispatch; a token without
//   rows gets zeros. Numerics  f32 sums, one rounding to the type of rows: the same bits for any
//   number of ranks and
//             threads and over any transport. Dispatch's gradient is this function and this
//             function's gradient is dispatch.
//   Memory    allocates nothing that grows with T, H or the ranks' rows.
//   Errors    as for dispatch; topk > kMaxTopk is kUnimplemented.
//   Threads   collective over the plan's ranks; work is spread over the executor.
struct CombineArgs {
  ConstTensorView plan;         // i32[PlanWords]
  ConstTensorView rows;         // [C,H] f32 | bf16; C at least the plan's capacity
  ConstTensorView row_weights;  // [C] f32, or absent
  TensorView y;                 // [T,H] as rows
  TensorView weights;           // [T,k] f32, or absent: with row_weights only
};
inline constexpr int64_t kMaxTopk = 256;

// One rank's part: blocks until all ranks have done theirs.
Status Combine(const CombineArgs& args, const Call& call, Transport& transport, Executor& executor);

// All parts at once, for ranks whose memory this thread can reach: ranks[r] is rank r's.
Status CombineTogether(std::span<const CombineArgs* const> ranks, Executor& executor);

// The oracle: from the experts [T_r,k] of all ranks; plans are not read.
void CombineReference(const Group& group, const ConstTensorView* experts, const CombineArgs* ranks);

}  // namespace anabranch::expert_parallel

#endif  // ANABRANCH_COMM_EXPERT_PARALLEL_COMBINE_H_
