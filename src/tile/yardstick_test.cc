// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/yardstick.h"

#include <gtest/gtest.h>

namespace anabranch::tile {
namespace {

// The same bytes through the same memory: a factor of eight lies between the two only when one of
// them counts other bytes than it moves.
TEST(Yardstick, CopiesThroughTheCachesAndPastThemAreOfOneMagnitude) {
  ThreadExecutor executor(2);
  const double cached = MeasureCopyGbPerSecond(&executor);
  const double streamed = MeasureStreamGbPerSecond(&executor);
  EXPECT_GT(cached, 0.01);
  EXPECT_GT(streamed, cached / 8);
  EXPECT_LT(streamed, cached * 8);
}

TEST(Yardstick, PeaksAreThoseOfAProcessor) {
  ThreadExecutor executor(1);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const double gflops = MeasurePeakGflops(dtype, &executor);
    EXPECT_GT(gflops, 0.01);
    EXPECT_LT(gflops, 1e5);
  }
}

}  // namespace
}  // namespace anabranch::tile
