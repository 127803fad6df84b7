// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_PIPELINE_H_
#define ANABRANCH_SIM_PLANNER_PIPELINE_H_

#include <cstdint>
#include <vector>

#include "sim/planner/request.h"

// In which order a pipeline stage runs its microbatches.
namespace anabranch::sim {

// A microbatch in one chunk of the model. `position` counts chunks along the model; `direction` is
// 1 for the half of DualPipe's microbatches that enter at the last stage.
struct Unit {
  int32_t position = -1;
  int32_t microbatch = -1;
  int32_t direction = 0;
  bool exists() const { return position >= 0; }
};

// A forward pass, a backward pass, or one of each that run together so that one's communication is
// hidden by the other's compute.
struct Phase {
  Unit forward;
  Unit backward;
};

// Stage that holds a chunk.
int32_t StageOf(const Layout& layout, int32_t position, int32_t direction);

// Phases of every stage, in order. With `layout.overlap` a forward pass and the backward pass after
// it share a phase in the steady state. 1F1B: Narayanan et al. 2021 (arXiv 2104.04473), interleaved
// the same with chunks in groups of pp microbatches. DualPipe-like: both directions at once,
// ordered by running unit-time passes greedily, backward first, at most pp + 1 microbatches in
// flight a stage (the schedule of arXiv 2412.19437 has this shape; ours need not equal it slot by
// slot).
std::vector<std::vector<Phase>> MakePhases(const Layout& layout, int64_t microbatches);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_PIPELINE_H_
