// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_ENGINE_ENGINE_H_
#define ANABRANCH_SIM_ENGINE_ENGINE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "sim/engine/network.h"

// The event engine. Ranks that do the same are one class; a class has one queue per stream, and a
// stream runs its tasks one after the other by `order`, as it would kernels in the order of their
// launch: a task starts when its predecessors and the task before it have ended. While collectives
// run, compute has fewer SMs and less HBM bandwidth, and collectives share ports (network.h).
namespace anabranch::sim {

enum class Stream : uint8_t { kCompute, kEp, kTp, kDp, kPp, kH2d, kD2h };
inline constexpr int kStreams = 7;

struct Task {
  int32_t rank_class = 0;
  Stream stream = Stream::kCompute;
  int32_t order = 0;  // tasks of equal order run by their numbers
  // Compute: seconds bound by the multiply units, by HBM, and by neither (launches).
  double sm_seconds = 0;
  double hbm_seconds = 0;
  double fixed_seconds = 0;
  // Communication: what it takes of the ports, the share of all SMs that drives it, and the share
  // of HBM bandwidth that it uses while running at full speed. Host copies use fixed_seconds.
  Transfer transfer;
  double sm_share = 0;
  double hbm_share = 0;
};

struct Schedule {
  std::vector<double> start;
  std::vector<double> end;
  // The predecessor that ended last, or the task that held the stream; -1 for none.
  std::vector<int32_t> cause;
  double seconds = 0;
  int64_t events = 0;
};

// Runs `tasks` under `edges` (before, after). `slowdown` multiplies the compute time of each class.
// Deterministic: simultaneous events are handled in the order of task numbers.
// Errors: kInvalidArgument for an edge or class out of range, or tasks that wait for each other
// through edges or through the order of their stream.
// Memory grows with tasks and edges. Thread-compatible.
Status RunTasks(const std::vector<Task>& tasks,
                const std::vector<std::pair<int32_t, int32_t>>& edges,
                const std::vector<double>& slowdown, Schedule* schedule);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_ENGINE_ENGINE_H_
