// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/planner.h"

#include <gtest/gtest.h>

namespace anabranch::sim {
namespace {
TEST(Planner, Empty) {
  Request request;
  EXPECT_FALSE(Validate(request).ok());
}
}  // namespace
}  // namespace anabranch::sim
