// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace anabranch {
namespace {

constexpr int64_t kGuard = 128;

// Every byte arrives and none beside them is touched, wherever the two begin in their cache lines.
void CheckCopy(CopyRow copy, int64_t to_offset, int64_t from_offset, int64_t bytes) {
  std::vector<char> from(from_offset + bytes + 1);
  std::vector<char> to(2 * kGuard + to_offset + bytes, -1);
  for (int64_t i = 0; i < bytes; ++i) from[from_offset + i] = static_cast<char>(i % 113);
  const int64_t first = kGuard + to_offset;
  copy(to.data() + first, from.data() + from_offset, bytes);
  StreamFence();
  for (int64_t i = 0; i < static_cast<int64_t>(to.size()); ++i) {
    const bool inside = i >= first && i < first + bytes;
    ASSERT_EQ(to[i], inside ? from[from_offset + i - first] : -1)
        << "byte " << i - first << " of " << bytes << ", to " << to_offset << ", from "
        << from_offset;
  }
}

TEST(StreamCopy, CopiesEveryByteAndNoOther) {
  for (const CopyRow copy : {CopyStreaming, CopyCached}) {
    for (const int64_t bytes : {0, 1, 63, 64, 65, 127, 128, 129, 1000, 4096, 20000}) {
      for (const int64_t to_offset : {0, 1, 16, 63}) {
        for (const int64_t from_offset : {0, 3, 32}) {
          CheckCopy(copy, to_offset, from_offset, bytes);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(StreamCopy, StreamsLargePayloadsAlone) {
  EXPECT_EQ(Copier(kStreamedPayloadBytes - 1), CopyCached);
  EXPECT_EQ(Copier(kStreamedPayloadBytes), CopyStreaming);
}

}  // namespace
}  // namespace anabranch
