// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_PROGRAM_CHUNKS_H_
#define ANABRANCH_SIM_PLANNER_PROGRAM_CHUNKS_H_

#include <vector>

#include "sim/planner/costs.h"
#include "sim/planner/request.h"

// How a pipeline cuts the model.
namespace anabranch::sim {

// What one chunk of the model holds: layers [first, last), and what stands at the ends.
struct Chunk {
  int64_t first = 0;
  int64_t last = 0;
  bool embedding = false;
  bool head = false;  // with the multi-token prediction blocks, if there are any
};

// Cuts the layers into pp * vp runs so that the run with the most FLOPs has as few as possible.
// Head and multi-token prediction stand in the last. Seconds would cut otherwise on every machine,
// and the best cut by seconds of a run is not the fastest step: a stage has vp runs, and waits.
std::vector<Chunk> MakeChunks(const Request& request, const Costs& costs,
                              const std::vector<ExpertCosts>& experts);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_PROGRAM_CHUNKS_H_
