// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/yardstick.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

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

TEST(Yardstick, ACopyThatIsTimedIsMade) {
  ThreadExecutor executor(2);
  std::vector<char> from((5 << 20) + 3), to(from.size() + 1, -1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i % 101);
  EXPECT_GT(TimeStreamCopy(from.data(), to.data(), static_cast<int64_t>(from.size()), &executor),
            0);
  EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin()));
  EXPECT_EQ(to.back(), -1);
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
