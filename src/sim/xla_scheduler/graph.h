// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_XLA_SCHEDULER_GRAPH_H_
#define ANABRANCH_SIM_XLA_SCHEDULER_GRAPH_H_

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/status.h"

namespace anabranch::sim::hlo {

// What an asynchronous operation holds from its start to its done.
enum class AsyncResource : int8_t {
  kCollective,         // any collective, unless it is a scale-up one
  kScaleUpCollective,  // a collective marked as staying inside one scale-up domain
  kAsyncCompute,       // computation on another stream, and copies to and from the host
  kPointToPoint,       // send and recv
};
inline constexpr int kNumAsyncResources = 4;
using ResourceCounts = std::array<int64_t, kNumAsyncResources>;

enum class NodeRole : int8_t {
  kPlain,
  kNoOp,   // costs nothing and is placed as soon as it may be: tuples, bitcasts, parameters
  kStart,  // begins what its done waits for
  kDone,
};

// Groups of devices that a collective runs in, each a list of device ids.
using DeviceGroups = std::vector<std::vector<int64_t>>;

// One instruction. Times are in nanoseconds, the unit in which XLA's estimators meet its constants.
struct GraphNode {
  std::string name;
  NodeRole role = NodeRole::kPlain;
  AsyncResource resource = AsyncResource::kCollective;  // of a start or done
  double cost = 1;                                      // time on the stream that issues it
  double latency = 0;                                   // of a done: from the end of its start
  int start = -1;                                       // of a done: its start
  std::vector<int> predecessors;  // nodes that must come before, lower than this node's number
  // Resources that the computations it calls take at their busiest, as a loop's body does.
  ResourceCounts inner_resources{};
  const DeviceGroups* groups = nullptr;  // of a collective's start; null: unknown
  bool opaque = false;                   // a collective whose groups XLA does not look at
  // Of the nodes that could come last, one placed early does and one placed late does not: the
  // first stands right before its user, the second (a copy to the host) right after its data is
  // there.
  bool place_early = false;
  bool place_late = false;
  // Buffers, numbers into ScheduleGraph::buffer_bytes.
  std::vector<int> defines;
  std::vector<int> uses;
};

// A computation in its original order: every predecessor has a lower number than its node.
struct ScheduleGraph {
  std::vector<GraphNode> nodes;
  std::vector<int64_t> buffer_bytes;
};

// Options of XLA's scheduler, with its defaults on GPUs.
struct SchedulerOptions {
  // xla_gpu_experimental_parallel_collective_overlap_limit; the scale-up domain's own;
  // xla_gpu_experimental_parallel_async_compute_limit; a constant of the GPU back end.
  ResourceCounts limits{1, 1, 2, 4};
  // Collectives that share more than one device may not be in flight together: the devices could
  // launch them in different orders and wait for each other for ever.
  bool forbid_shared_devices = true;
  // Bytes above which pressure on memory comes before everything else.
  int64_t memory_limit = std::numeric_limits<int64_t>::max();
};

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_XLA_SCHEDULER_GRAPH_H_
