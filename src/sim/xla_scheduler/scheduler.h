// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_XLA_SCHEDULER_SCHEDULER_H_
#define ANABRANCH_SIM_XLA_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "sim/xla_scheduler/graph.h"

namespace anabranch::sim::hlo {

// Orders a computation as XLA's latency-hiding scheduler does: a list scheduler that runs from the
// last instruction to the first, so that a done comes first and opens the interval in which work is
// wanted, and its start closes the interval. Rules and their order are those of
// xla/service/latency_hiding_scheduler.cc and its GPU back end (openxla/xla, August 2026), written
// anew; annotations of scheduling groups, shareable and selective resources are left out.
//
// order: numbers of nodes, first to run first; a permutation that respects every predecessor.
// An empty graph gives an empty order. InvalidArgument: a predecessor or start that is not a lower
// number, a negative or non-finite time, a limit below 1, a buffer that is not there. OutOfRange:
// the overlap limits leave nothing to place (a loop's body needs more than there is).
// Deterministic; O(nodes x ready nodes) comparisons. Thread-safe.
Status LatencyHidingSchedule(const ScheduleGraph& graph, const SchedulerOptions& options,
                             std::vector<int>* order);

// Largest number of devices that a group of `a` and a group of `b` have in common.
int64_t SharedDevices(const DeviceGroups& a, const DeviceGroups& b);

// The resources in flight at the busiest moment of `order`.
ResourceCounts PeakResources(const ScheduleGraph& graph, const std::vector<int>& order);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_XLA_SCHEDULER_SCHEDULER_H_
