// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_XLA_SCHEDULER_READY_ORDER_H_
#define ANABRANCH_SIM_XLA_SCHEDULER_READY_ORDER_H_

#include <queue>
#include <vector>

#include "sim/xla_scheduler/graph.h"

namespace anabranch::sim::hlo {

struct Edge {
  int node;
  double latency;
};

// A ready node whose time has not come, soonest first.
struct NotYet {
  double ready_time;
  int node;
  bool operator<(const NotYet& other) const { return ready_time > other.ready_time; }
};

// Which buffers are alive while the schedule grows from its end: a use makes a buffer alive, its
// definition ends it.
struct MemoryState {
  const std::vector<int64_t>* bytes = nullptr;
  std::vector<bool> live;
  int64_t used = 0;
};

// Change of the memory in use, and the largest increase on the way, if `node` were placed.
struct MemoryChange {
  int64_t change = 0;
  int64_t peak = 0;
};
MemoryChange ChangeOfMemory(const GraphNode& node, const MemoryState& memory);
void UpdateMemory(const GraphNode& node, MemoryState* memory);

struct SchedulerState {
  const ScheduleGraph* graph = nullptr;
  const SchedulerOptions* options = nullptr;
  double now = 0;  // counted from the end of the schedule
  std::vector<std::vector<Edge>> successors;
  std::vector<int> waiting_for;  // successors not yet placed
  std::vector<double> ready_time;
  std::vector<double> async_depth;
  std::vector<bool> unlocks_done;  // a predecessor is a done
  std::vector<int> ready;
  std::vector<int> ready_no_ops;
  std::priority_queue<NotYet> not_yet;
  ResourceCounts available{};
  ResourceCounts waiting_dones{};          // ready dones of each resource
  std::vector<int> collectives_in_flight;  // their starts
  MemoryState memory;
};

// Whether `a` is to be placed rather than `b`, both ready.
bool IsBetter(const SchedulerState& state, int a, int b);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_XLA_SCHEDULER_READY_ORDER_H_
