// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_RAGGED_PLAN_RAGGED_PLAN_H_
#define ANABRANCH_OPS_RAGGED_PLAN_RAGGED_PLAN_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {

struct RaggedPlanArgs {
  ConstTensorView experts;   // [T, topk] i32; -1 = routed nowhere
  TensorView group_sizes;    // [E] i32
  TensorView group_offsets;  // [E+1] i32
  TensorView row_token;      // [R] i32
  TensorView slot_row;       // [T, topk] i32
};

// Orders the routed slots of T tokens by (expert, token, slot): a stable counting sort.
//   group_sizes[e]    slots routed to expert e
//   group_offsets[e]  first row of expert e; group_offsets[E] is the number of rows used
//   row_token[r]      token of row r; -1 for r >= group_offsets[E]
//   slot_row[t, j]    row of slot j of token t; -1 where experts[t, j] is -1
//   Empty     T = 0, experts without slots, and all ids -1 are normal.
//   Numerics  integers; the same bits for any number of threads.
//   Memory    allocates nothing; needs RaggedPlanScratchBytes of scratch.
//   Errors    kInvalidArgument (shape, type, scratch); kOutOfRange (an id < -1 or >= E: the first
//   such
//             slot is named); kResourceExhausted (more routed slots than R: both numbers are
//             given). The outputs are undefined after an error.
//   Threads   re-entrant; work is spread over context.executor.
Status RaggedPlan(const RaggedPlanArgs& args, Context& context);

int64_t RaggedPlanScratchBytes(int64_t num_slots, int64_t num_experts);

// The scalar oracle: same results, arguments taken as valid.
void RaggedPlanReference(const RaggedPlanArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_RAGGED_PLAN_RAGGED_PLAN_H_
