// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The platform as smpirun loads it.
#include "simgrid/two_level_platform.h"

extern "C" __attribute__((visibility("default"))) void load_platform(
    const simgrid::s4u::Engine& engine);

void load_platform(const simgrid::s4u::Engine& engine) {
  static_cast<void>(engine);
  anabranch::sim::MakeTwoLevelPlatform();
}
