// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/xla_scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "sim/xla_scheduler/ready_order.h"

namespace anabranch::sim::hlo {
namespace {

// The latency of a dependency between two synchronous instructions, one unit in XLA.
constexpr double kPlainLatency = 1;

Status CheckNode(const ScheduleGraph& graph, int node) {
  const GraphNode& n = graph.nodes[node];
  for (const int before : n.predecessors) {
    if (before < 0 || before >= node) {
      return InvalidArgument("latency_hiding_schedule: node ", node, " (", n.name,
                             ") has predecessor ", before, "; it must be a lower number");
    }
  }
  if (!(n.cost >= 0) || !(n.latency >= 0) || !std::isfinite(n.cost + n.latency)) {
    return InvalidArgument("latency_hiding_schedule: node ", node, " (", n.name, ") has cost ",
                           n.cost, " and latency ", n.latency, "; both must be finite and >= 0");
  }
  if (n.role == NodeRole::kDone &&
      (n.start >= node || n.start < -1 ||
       (n.start >= 0 && graph.nodes[n.start].role != NodeRole::kStart))) {
    return InvalidArgument("latency_hiding_schedule: node ", node, " (", n.name, ") names start ",
                           n.start, "; it must be a start with a lower number");
  }
  const auto buffers = static_cast<int>(graph.buffer_bytes.size());
  for (const std::vector<int>* list : {&n.defines, &n.uses}) {
    for (const int buffer : *list) {
      if (buffer < 0 || buffer >= buffers) {
        return InvalidArgument("latency_hiding_schedule: node ", node, " names buffer ", buffer,
                               " of ", buffers);
      }
    }
  }
  return Status::Ok();
}

Status Check(const ScheduleGraph& graph, const SchedulerOptions& options) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    ANABRANCH_RETURN_IF_ERROR(CheckNode(graph, static_cast<int>(i)));
  }
  for (const int64_t limit : options.limits) {
    if (limit < 1) {
      return InvalidArgument("latency_hiding_schedule: overlap limit ", limit, "; must be >= 1");
    }
  }
  return Status::Ok();
}

double EdgeLatency(const GraphNode& before, const GraphNode& after, int before_number) {
  const bool pair = before.role == NodeRole::kStart && after.role == NodeRole::kDone;
  return pair && after.start == before_number ? after.latency : kPlainLatency;
}

// Edges, degrees, and the longest chain of asynchronous latencies above each node.
void BuildEdges(const ScheduleGraph& graph, SchedulerState* state) {
  const size_t count = graph.nodes.size();
  state->successors.resize(count);
  state->waiting_for.assign(count, 0);
  state->async_depth.assign(count, 0.0);
  state->unlocks_done.assign(count, false);
  for (size_t i = 0; i < count; ++i) {
    const GraphNode& node = graph.nodes[i];
    for (const int before : node.predecessors) {
      const double latency = EdgeLatency(graph.nodes[before], node, before);
      state->successors[before].push_back({static_cast<int>(i), latency});
      ++state->waiting_for[before];
      const double along = node.role == NodeRole::kDone ? latency : 0;
      state->async_depth[i] = std::max(state->async_depth[i], state->async_depth[before] + along);
      if (graph.nodes[before].role == NodeRole::kDone) state->unlocks_done[i] = true;
    }
  }
}

// Whether placing the node would put more in flight than may be, or two collectives that could
// deadlock.
bool CrossesLimit(const SchedulerState& state, int node) {
  const GraphNode& n = state.graph->nodes[node];
  for (int r = 0; r < kNumAsyncResources; ++r) {
    int64_t needed = n.inner_resources[r];
    if (n.role == NodeRole::kDone && static_cast<int>(n.resource) == r) needed = 1;
    const bool in_flight = state.available[r] < state.options->limits[r];
    if (in_flight && needed > state.available[r]) return true;
  }
  if (n.role != NodeRole::kDone || n.start < 0 || !state.options->forbid_shared_devices) {
    return false;
  }
  if (n.resource != AsyncResource::kCollective && n.resource != AsyncResource::kScaleUpCollective) {
    return false;
  }
  const GraphNode& start = state.graph->nodes[n.start];
  if (start.opaque) return false;
  for (const int other : state.collectives_in_flight) {
    const GraphNode& holder = state.graph->nodes[other];
    if (holder.opaque) continue;
    if (start.groups == nullptr || holder.groups == nullptr) return true;
    if (SharedDevices(*start.groups, *holder.groups) > 1) return true;
  }
  return false;
}

// Takes the best ready node out of the ready list; -1 when the limits forbid all of them.
int TakeBest(SchedulerState* state) {
  if (!state->ready_no_ops.empty()) {
    const int node = state->ready_no_ops.back();
    state->ready_no_ops.pop_back();
    return node;
  }
  int best = -1;
  for (size_t i = 0; i < state->ready.size(); ++i) {
    if (CrossesLimit(*state, state->ready[i])) continue;
    if (best < 0 || IsBetter(*state, state->ready[i], state->ready[best])) {
      best = static_cast<int>(i);
    }
  }
  if (best < 0) return -1;
  const int node = state->ready[best];
  std::swap(state->ready[best], state->ready.back());
  state->ready.pop_back();
  return node;
}

bool IsCollective(const GraphNode& node) {
  return node.resource == AsyncResource::kCollective ||
         node.resource == AsyncResource::kScaleUpCollective;
}

void TakeOrGiveResource(const GraphNode& node, int number, SchedulerState* state) {
  const int resource = static_cast<int>(node.resource);
  if (node.role == NodeRole::kStart) {
    ++state->available[resource];
    std::erase(state->collectives_in_flight, number);
  } else if (node.role == NodeRole::kDone) {
    --state->available[resource];
    --state->waiting_dones[resource];
    if (IsCollective(node)) {
      state->collectives_in_flight.push_back(node.start >= 0 ? node.start : number);
    }
  }
}

// XLA counts a loop's resources when it becomes ready and never takes them off again; so does this.
void CountWaiting(const GraphNode& node, SchedulerState* state) {
  for (int r = 0; r < kNumAsyncResources; ++r) {
    const bool done = node.role == NodeRole::kDone && static_cast<int>(node.resource) == r;
    if (done || node.inner_resources[r] > 0) ++state->waiting_dones[r];
  }
}

// A node all of whose successors are placed becomes ready when the last of them lets it.
void MakeReady(int node, SchedulerState* state) {
  const GraphNode& n = state->graph->nodes[node];
  double ready_time = state->now;
  for (const Edge& edge : state->successors[node]) {
    ready_time = std::max(ready_time, state->ready_time[edge.node] + edge.latency);
  }
  state->ready_time[node] = ready_time;
  CountWaiting(n, state);
  if (n.role == NodeRole::kNoOp) {
    state->ready_no_ops.push_back(node);
    return;
  }
  state->ready.push_back(node);
  if (ready_time > state->now) state->not_yet.push({ready_time, node});
}

void Place(int node, SchedulerState* state) {
  const GraphNode& n = state->graph->nodes[node];
  TakeOrGiveResource(n, node, state);
  double begin = state->now;
  for (const Edge& edge : state->successors[node]) {
    begin = std::max(begin, state->ready_time[edge.node] + edge.latency);
  }
  state->ready_time[node] = begin;
  state->now = begin + n.cost;
  while (!state->not_yet.empty() && state->not_yet.top().ready_time < state->now) {
    state->not_yet.pop();
  }
  for (const int before : n.predecessors) {
    if (--state->waiting_for[before] == 0) MakeReady(before, state);
  }
  UpdateMemory(n, &state->memory);
}

}  // namespace

Status LatencyHidingSchedule(const ScheduleGraph& graph, const SchedulerOptions& options,
                             std::vector<int>* order) {
  ANABRANCH_RETURN_IF_ERROR(Check(graph, options));
  const size_t count = graph.nodes.size();
  SchedulerState state;
  state.graph = &graph;
  state.options = &options;
  state.available = options.limits;
  state.ready_time.assign(count, 0.0);
  state.memory.bytes = &graph.buffer_bytes;
  state.memory.live.assign(graph.buffer_bytes.size(), false);
  BuildEdges(graph, &state);
  for (size_t i = 0; i < count; ++i) {
    if (state.waiting_for[i] != 0) continue;
    CountWaiting(graph.nodes[i], &state);
    state.ready.push_back(static_cast<int>(i));
  }
  order->clear();
  while (order->size() < count) {
    const int node = TakeBest(&state);
    if (node < 0) {
      return OutOfRange("latency_hiding_schedule: ", graph.nodes[state.ready.front()].name,
                        " needs more resources than the overlap limits leave");
    }
    order->push_back(node);
    Place(node, &state);
  }
  std::reverse(order->begin(), order->end());
  return Status::Ok();
}

int64_t SharedDevices(const DeviceGroups& a, const DeviceGroups& b) {
  int64_t most = 0;
  for (const std::vector<int64_t>& group : a) {
    const std::unordered_set<int64_t> members(group.begin(), group.end());
    for (const std::vector<int64_t>& other : b) {
      const auto shared = std::count_if(other.begin(), other.end(),
                                        [&](int64_t id) { return members.contains(id); });
      most = std::max<int64_t>(most, shared);
    }
  }
  return most;
}

ResourceCounts PeakResources(const ScheduleGraph& graph, const std::vector<int>& order) {
  ResourceCounts peak{};
  ResourceCounts in_flight{};
  for (const int number : order) {
    const GraphNode& node = graph.nodes[number];
    const int resource = static_cast<int>(node.resource);
    if (node.role == NodeRole::kStart) ++in_flight[resource];
    for (int r = 0; r < kNumAsyncResources; ++r) {
      peak[r] = std::max(peak[r], in_flight[r] + node.inner_resources[r]);
    }
    if (node.role == NodeRole::kDone && node.start >= 0) --in_flight[resource];
  }
  return peak;
}

}  // namespace anabranch::sim::hlo
