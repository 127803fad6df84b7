// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_PLANNER_H_
#define ANABRANCH_SIM_PLANNER_PLANNER_H_

#include <string>
#include <vector>

#include "sim/planner/memory.h"

namespace anabranch::sim {

// Where a stage's step goes, in seconds. They add up to the step.
struct StageTime {
  double compute = 0;
  double ep = 0;  // waiting for dispatch or combine while nothing else can run
  double tp = 0;
  double dp = 0;
  double pp = 0;         // waiting for a transfer between stages
  double offload = 0;    // waiting for a host copy
  double bubble = 0;     // waiting for another stage's compute
  double recompute = 0;  // part of compute
  double optimizer = 0;  // part of compute
};

struct Answer {
  double step_seconds = 0;
  double imbalance_seconds = 0;  // expert compute of the busiest rank beyond the mean rank's
  double rank_load = 1;          // mean over layers of the busiest rank's rows over the mean
  std::vector<StageTime> stages;
  std::vector<StageMemory> memory;
  std::vector<Chunk> chunks;
  Program program;
  Schedule schedule;
  int64_t simulated_microbatches = 0;
};

// Simulates one training step. The same request gives the same answer to the bit.
// Errors: kInvalidArgument, see Validate.
Status Simulate(const Request& request, Answer* answer);

// The answer as JSON: step, stages, memory by tensor, chunks and, when asked for, every task.
std::string ToJson(const Request& request, const Answer& answer);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_PLANNER_H_
