// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_EXPERT_PARALLEL_PREPARE_H_
#define ANABRANCH_COMM_EXPERT_PARALLEL_PREPARE_H_

#include <cstdint>
#include <span>

#include "base/executor.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "comm/expert_parallel/plan.h"
#include "comm/transport.h"

namespace anabranch::expert_parallel {

// Exchanges the ranks' counts [ranks, E] and makes each rank's plan from them: 4 E bytes a rank
// travel, whatever the number of tokens.
//   Empty, numerics: see FillPlan.
//   Errors    those of CountSlots and FillPlan, on every rank, with the rank's number in front.
//   Threads   collective.
struct PrepareArgs {
  ConstTensorView experts;         // [T,k] i32; T may differ between ranks
  ConstTensorView rank_of_expert;  // [E] i32, the same on all ranks
  int64_t alignment = 1;
  int64_t capacity = 0;
  Overflow overflow = Overflow::kError;
  TensorView plan;           // [PlanWords] i32
  TensorView group_sizes;    // [L] i32: rows of the rank's own experts that carry a token
  TensorView group_offsets;  // [L+1] i32: where their rows begin; the last is the rows in use
  TensorView report;         // [3] i32: capacity, rows that the fullest rank needs, slots dropped
};

// One rank's part: blocks until all ranks have come.
Status Prepare(const PrepareArgs& args, const Call& call, Transport& transport);

// All parts at once, for ranks whose memory this thread can reach: ranks[r] is rank r's.
Status PrepareTogether(std::span<const PrepareArgs* const> ranks, Executor& executor);

}  // namespace anabranch::expert_parallel

#endif  // ANABRANCH_COMM_EXPERT_PARALLEL_PREPARE_H_
