// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_EXPERT_PARALLEL_COMBINE_H_
#define ANABRANCH_COMM_EXPERT_PARALLEL_COMBINE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "comm/expert_parallel/plan.h"
#include "comm/transport.h"

namespace anabranch::expert_parallel {

// One wave's rows and their weights, see Waves.
struct WaveRows {
  ConstTensorView rows;         // [C,H] f32 | bf16
  ConstTensorView row_weights;  // [C] f32, or absent
};

// The transpose of dispatch: each token fetches its slots' rows from their owners and adds them up.
//   y[t, :] = sum over slots j in ascending expert order of
//             rows_of(slot_rank[t, j])[slot_row[t, j], :]
//   weights[t, j] = row_weights_of(slot_rank[t, j])[slot_row[t, j]], 0 for a slot without a row
// Rows that were sent in waves lie in a buffer for each wave; the sum is over all of them.
//   Layout    row-major; outputs overlap nothing.
//   Empty     as for dispatch; a token without rows gets zeros.
//   Numerics  exact (domain_size 0): f32 sums, one rounding to the type of rows: the same bits for
//             any number of ranks, waves and threads and over any transport. Two-level (domain_size
//             D): the rows of ranks r with equal r / D are added in f32 in ascending expert order
//             and rounded to the type of rows, as what one domain would send to another; these are
//             added in f32 in ascending order of domains and rounded. The same bits for any number
//             of waves and threads; they depend on the ranks. Dispatch's gradient is this function
//             and this function's gradient is dispatch.
//   Memory    exact allocates nothing that grows with T, H or the ranks' rows, two-level at most k
//             rows for each unit of work.
//   Errors    as for dispatch; topk > kMaxTopk is kUnimplemented.
//   Threads   collective over the plan's ranks; work is spread over the executor.
struct CombineArgs {
  ConstTensorView plan;  // i32[PlanWords]
  ConstTensorView rows;  // [C,H] f32 | bf16; C at least the plan's capacity, or wave 0's rows
  ConstTensorView row_weights;             // [C] f32, or absent
  TensorView y;                            // [T,H] as rows
  TensorView weights;                      // [T,k] f32, or absent: with row_weights only
  std::vector<WaveRows> later_waves = {};  // rows of waves 1, 2, ...
  int64_t domain_size = 0;                 // of the two-level sum; 0: exact
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
