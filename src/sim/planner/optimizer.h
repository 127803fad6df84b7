// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_OPTIMIZER_H_
#define ANABRANCH_SIM_PLANNER_OPTIMIZER_H_

#include "sim/planner/costs.h"
#include "sim/planner/program/chunks.h"

// What the optimizer's step takes.
namespace anabranch::sim {

// FLOPs of Muon's iterations over the matrices of a chunk, for one step and one holder of the
// chunk: `plain` of a tensor-parallel rank's share, `experts` of the expert-parallel rank's own.
// Zero under AdamW. Gate, up and down of an expert are matrices of their own, as in the model;
// embedding and head have none.
struct MatrixFlops {
  double plain = 0;
  double experts = 0;
};
MatrixFlops MuonMatrixFlops(const Request& request, const Chunk& chunk);

// The step over `parameters` of this rank: the bytes of adamw_cost.h or muon_cost.h, the bf16 copy
// that the model multiplies with, and `matrix_flops` in bf16. When optimizer states live on the
// host, so do their bytes.
Work OptimizerWork(const Request& request, double parameters, double matrix_flops);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_OPTIMIZER_H_
