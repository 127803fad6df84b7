// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_EXPERT_PARALLEL_DISPATCH_H_
#define ANABRANCH_COMM_EXPERT_PARALLEL_DISPATCH_H_

#include <cstdint>
#include <span>

#include "base/executor.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "comm/expert_parallel/plan.h"
#include "comm/transport.h"

namespace anabranch::expert_parallel {

// Sends every routed slot's row of x to the rank that owns its expert, straight into its final row:
//   rows_of(slot_rank[t, j])[slot_row[t, j], :] = x[t, :]      row_weights likewise = weights[t, j]
// Padding rows between groups, and their weights, are zeroed. Rows past the plan's used_rows are
// not touched. A call with waves.count > 1 sends one wave, into a buffer that begins with its first
// row; calls of different waves need not come in any order.
//   Layout    row-major; outputs overlap nothing. u8 rows are slots of comm/wire/wire.h.
//   Empty     T = 0, H = 0, ranks that send or receive nothing are normal.
//   Numerics  copies; with large payloads by non-temporal stores, each row written once.
//   Memory    allocates nothing that grows with T, H or the ranks' rows.
//   Errors    kInvalidArgument on all ranks when a rank's arguments do not fit its plan or the
//             plans do not fit each other; outputs are then undefined.
//   Threads   collective over the plan's ranks; work is spread over the executor.
struct DispatchArgs {
  ConstTensorView plan;     // i32[PlanWords]
  ConstTensorView x;        // [T,H] f32 | bf16 | u8
  ConstTensorView weights;  // [T,k] f32, or absent
  TensorView rows;          // [C,H] as x; C at least the plan's capacity, or the wave's rows
  TensorView row_weights;   // [C] f32, or absent: with weights only
  int64_t wave = 0;
  Waves waves = {};
};

// One rank's part: blocks until all ranks have done theirs.
Status Dispatch(const DispatchArgs& args, const Call& call, Transport& transport,
                Executor& executor);

// All parts at once, for ranks whose memory this thread can reach: ranks[r] is rank r's.
Status DispatchTogether(std::span<const DispatchArgs* const> ranks, Executor& executor);

// The oracle: from the experts [T_r,k] of all ranks; plans are not read.
void DispatchReference(const Group& group, const ConstTensorView* experts,
                       const DispatchArgs* ranks);

}  // namespace anabranch::expert_parallel

#endif  // ANABRANCH_COMM_EXPERT_PARALLEL_DISPATCH_H_
