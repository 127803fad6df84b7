// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_STEP_HLO_GRAPH_H_
#define ANABRANCH_SIM_HLO_STEP_HLO_GRAPH_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "sim/hlo/module.h"
#include "sim/xla_scheduler/graph.h"

namespace anabranch::sim::hlo {

// Times of one instruction in nanoseconds: on the stream that issues it, and from a start to its
// done.
struct InstructionTimes {
  double cost = 0;
  double latency = 0;  // of a start
};

// XLA's own guesses when it has neither a profile nor a model ("T-shirt sizes"): 5000 for what is
// asynchronous and for output fusions, 1000 for loop fusions and custom calls, else 1.
std::vector<InstructionTimes> DefaultTimes(const HloModule& module, const Computation& computation);

struct GraphOptions {
  int64_t num_devices = 1;
  // Collectives that stay within this many neighbouring devices hold the scale-up resource; 0:
  // none.
  int64_t scale_up_domain = 0;
};

// A computation as the scheduler sees it. The groups that nodes point to lie in `groups`.
struct HloGraph {
  ScheduleGraph graph;
  std::vector<DeviceGroups> groups;  // one for each instruction, empty for those that have none
};
// inner: for each computation of the module, resources its schedule takes at its busiest.
Status BuildHloGraph(const HloModule& module, const Computation& computation,
                     const std::vector<InstructionTimes>& times, const GraphOptions& options,
                     const std::vector<ResourceCounts>& inner, HloGraph* result);

// The computations that run as schedules of their own, callees first.
std::vector<int> ScheduledComputations(const HloModule& module);

// Puts the instructions of a computation into `order`.
void Reorder(const std::vector<int>& order, Computation* computation);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_STEP_HLO_GRAPH_H_
