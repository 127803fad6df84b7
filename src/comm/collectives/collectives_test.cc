// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/collectives/collectives.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "comm/in_process.h"

namespace anabranch {
namespace {

void OnRanks(int ranks, const std::function<void(Transport&)>& body) {
  MeetingPlace place(std::chrono::milliseconds(60000));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      InProcessTransport transport(&place, 0, rank, ranks);
      body(transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Values whose sum depends on the order.
std::vector<float> Values(int rank, int64_t count) {
  std::mt19937 generator(static_cast<unsigned>(rank));
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(generator()) * (generator() % 2 == 0 ? 1e-9f : 1e3f);
  }
  return values;
}

TEST(SumOverRanks, IsTheTreeOfNeighbours) {
  constexpr int64_t kCount = 70001;
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<std::vector<float>> level;
    for (int rank = 0; rank < ranks; ++rank) level.push_back(Values(rank, kCount));
    while (level.size() > 1) {
      std::vector<std::vector<float>> next(level.size() / 2, std::vector<float>(kCount));
      for (size_t pair = 0; pair < next.size(); ++pair) {
        for (int64_t i = 0; i < kCount; ++i) {
          next[pair][i] = level[2 * pair][i] + level[2 * pair + 1][i];
        }
      }
      level = next;
    }
    OnRanks(ranks, [&](Transport& transport) {
      SerialExecutor executor;
      std::vector<float> x = Values(transport.rank(), kCount), y(kCount);
      const Status status =
          SumOverRanks({x.data(), y.data(), kCount}, {"sum", 0, 1, 0}, transport, executor);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(std::memcmp(y.data(), level[0].data(), kCount * sizeof(float)), 0);
      EXPECT_TRUE(SumOverRanks({}, {"sum", 0, 2, 0}, transport, executor).ok());
    });
  }
}

TEST(SumOverRanks, NeedsAPowerOfTwo) {
  OnRanks(3, [](Transport& transport) {
    SerialExecutor executor;
    EXPECT_EQ(SumOverRanks({}, {"sum", 0, 1, 0}, transport, executor).message(),
              "sum: 3 ranks; must be a power of two up to 64");
  });
}

TEST(GatherOverRanks, IsInTheOrderOfRanks) {
  OnRanks(3, [](Transport& transport) {
    const int32_t mine[] = {transport.rank(), 7};
    int32_t all[6];
    ASSERT_TRUE(GatherOverRanks({mine, sizeof(mine), all}, {"gather", 0, 1, 0}, transport).ok());
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(all[2 * rank], rank);
      EXPECT_EQ(all[2 * rank + 1], 7);
    }
  });
}

}  // namespace
}  // namespace anabranch
