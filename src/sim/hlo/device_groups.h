// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_DEVICE_GROUPS_H_
#define ANABRANCH_SIM_HLO_DEVICE_GROUPS_H_

#include <cstdint>

#include "base/status.h"
#include "sim/hlo/module.h"
#include "sim/xla_scheduler/graph.h"

namespace anabranch::sim::hlo {

// The device groups of a collective from replica_groups= or source_target_pairs=, in any of the
// printed forms: {{0,1},{2,3}}; [2,4]<=[8]; [4,2]<=[2,4]T(1,0); mesh['d'=2,'e'=4] {'e'}. Groups
// that are not written, or written as {}, are all of `num_devices` in one. A permute's groups are
// its pairs. InvalidArgument: the text cannot be read, or names a device that is not there
// (num_devices or more).
Status CollectiveGroups(const Instruction& instruction, int64_t num_devices, DeviceGroups* groups);

// How far a collective reaches when each `domain` devices in ascending order are a scale-up domain:
// the largest group, and of those the one with the fewest members in its first device's domain.
// `stride` is the distance of that group's first two devices.
struct GroupExtent {
  int64_t size = 1;
  int64_t in_domain = 1;
  int64_t stride = 1;
};
GroupExtent ExtentOf(const DeviceGroups& groups, int64_t domain);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_DEVICE_GROUPS_H_
