// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/xla_scheduler/ready_order.h"

#include <algorithm>
#include <cmath>
#include <compare>

namespace anabranch::sim::hlo {
namespace {

// A rule's verdict: positive when a goes first, negative when b does, 0 when it does not care.
using Verdict = int;

template <typename T>
Verdict Larger(const T& a, const T& b) {
  return static_cast<int>(a > b) - static_cast<int>(b > a);
}

// A loop with asynchronous operations in its body both takes and gives their resources.
bool HasInner(const GraphNode& node) {
  return std::any_of(node.inner_resources.begin(), node.inner_resources.end(),
                     [](int64_t count) { return count > 0; });
}
bool Releases(const GraphNode& node) { return node.role == NodeRole::kStart || HasInner(node); }
bool Occupies(const GraphNode& node) { return node.role == NodeRole::kDone || HasInner(node); }

// Nothing of a resource of the node is left while a done already waits for it.
bool IsBackedUp(const SchedulerState& state, const GraphNode& node) {
  for (int r = 0; r < kNumAsyncResources; ++r) {
    const bool own = (node.role == NodeRole::kStart || node.role == NodeRole::kDone) &&
                     static_cast<int>(node.resource) == r;
    if ((own || node.inner_resources[r] > 0) && state.available[r] == 0 &&
        state.waiting_dones[r] > 0) {
      return true;
    }
  }
  return false;
}

// A start that no earlier asynchronous operation leads to may be put off for ever at no cost.
bool IsIdleStart(const SchedulerState& state, int node) {
  const GraphNode& n = state.graph->nodes[node];
  return Releases(n) && state.async_depth[node] == 0 && !IsBackedUp(state, n);
}

// Of a done, XLA looks at its start too: opening one means the other must come.
MemoryChange ChangeWithStart(const SchedulerState& state, const GraphNode& node) {
  MemoryChange own = ChangeOfMemory(node, state.memory);
  if (node.role == NodeRole::kDone && node.start >= 0) {
    const MemoryChange start = ChangeOfMemory(state.graph->nodes[node.start], state.memory);
    own.change = std::min(own.change, start.change);
    own.peak = std::max(own.peak, start.peak);
  }
  return own;
}

Verdict ByMemory(const SchedulerState& state, const MemoryChange& a, const MemoryChange& b) {
  const int64_t limit = state.options->memory_limit;
  const int64_t used = state.memory.used;
  if (used >= limit && a.change != b.change) return Larger(b.change, a.change);
  return Larger(a.peak + used <= limit, b.peak + used <= limit);
}

Verdict ByStall(const SchedulerState& state, int a, int b) {
  const double wait_a = std::max(state.ready_time[a] - state.now, 0.0);
  const double wait_b = std::max(state.ready_time[b] - state.now, 0.0);
  return Larger(wait_b, wait_a);
}

// The node whose cost is nearest to the latency that is still to be covered wastes least of it.
Verdict ByWaste(const SchedulerState& state, int a, int b) {
  if (state.not_yet.empty()) return 0;
  const double uncovered = state.ready_time[state.not_yet.top().node] - state.now;
  const GraphNode& node_a = state.graph->nodes[a];
  const GraphNode& node_b = state.graph->nodes[b];
  const double off_a = std::abs(uncovered - node_a.cost);
  const double off_b = std::abs(uncovered - node_b.cost);
  return Larger(!Releases(node_a) && off_a < off_b, !Releases(node_b) && off_b < off_a);
}

int ReadyIfPlaced(const SchedulerState& state, int node) {
  const std::vector<int>& before = state.graph->nodes[node].predecessors;
  return static_cast<int>(std::count_if(before.begin(), before.end(),
                                        [&](int p) { return state.waiting_for[p] == 1; }));
}

}  // namespace

MemoryChange ChangeOfMemory(const GraphNode& node, const MemoryState& memory) {
  MemoryChange result;
  for (const int buffer : node.uses) {
    if (!memory.live[buffer]) result.change += (*memory.bytes)[buffer];
  }
  result.peak = result.change;
  for (const int buffer : node.defines) {
    if (memory.live[buffer]) result.change -= (*memory.bytes)[buffer];
  }
  return result;
}

void UpdateMemory(const GraphNode& node, MemoryState* memory) {
  for (const int buffer : node.uses) {
    if (!memory->live[buffer]) memory->used += (*memory->bytes)[buffer];
    memory->live[buffer] = true;
  }
  for (const int buffer : node.defines) {
    if (memory->live[buffer]) memory->used -= (*memory->bytes)[buffer];
    memory->live[buffer] = false;
  }
}

bool IsBetter(const SchedulerState& state, int a, int b) {
  const GraphNode& node_a = state.graph->nodes[a];
  const GraphNode& node_b = state.graph->nodes[b];
  if (const Verdict v = Larger(node_a.place_early, node_b.place_early)) return v > 0;
  if (const Verdict v = Larger(node_b.place_late, node_a.place_late)) return v > 0;
  MemoryChange change_a;
  MemoryChange change_b;
  const int64_t limit = state.options->memory_limit;
  const bool memory_matters =
      limit != SchedulerOptions().memory_limit && state.memory.used > limit / 2;
  if (memory_matters) {
    change_a = ChangeWithStart(state, node_a);
    change_b = ChangeWithStart(state, node_b);
    if (const Verdict v = ByMemory(state, change_a, change_b)) return v > 0;
  }
  if (const Verdict v = Larger(Occupies(node_a), Occupies(node_b))) return v > 0;
  if (const Verdict v = ByStall(state, a, b)) return v > 0;
  if (const Verdict v = Larger(!IsIdleStart(state, a), !IsIdleStart(state, b))) return v > 0;
  if (const Verdict v = Larger(Releases(node_a) && IsBackedUp(state, node_a),
                               Releases(node_b) && IsBackedUp(state, node_b))) {
    return v > 0;
  }
  if (const Verdict v = Larger(state.async_depth[a], state.async_depth[b])) return v > 0;
  if (const Verdict v = ByWaste(state, a, b)) return v > 0;
  if (const Verdict v = Larger<bool>(state.unlocks_done[a], state.unlocks_done[b])) return v > 0;
  if (const Verdict v = Larger(ReadyIfPlaced(state, a), ReadyIfPlaced(state, b))) return v > 0;
  if (memory_matters) {
    if (const Verdict v = Larger(change_a.change < 0, change_b.change < 0)) return v > 0;
  }
  return a > b;
}

}  // namespace anabranch::sim::hlo
