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

// The tree by its definition: halves, the larger one first.
float Tree(const std::vector<std::vector<float>>& values, size_t begin, size_t end, int64_t i) {
  if (end - begin == 1) return values[begin][i];
  const size_t middle = end - (end - begin) / 2;
  return Tree(values, begin, middle, i) + Tree(values, middle, end, i);
}

TEST(SumOverRanks, IsTheTreeOfNeighbours) {
  constexpr int64_t kCount = 70001;
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::vector<std::vector<float>> values;
    for (int rank = 0; rank < ranks; ++rank) values.push_back(Values(rank, kCount));
    std::vector<float> expected(kCount);
    for (int64_t i = 0; i < kCount; ++i) expected[i] = Tree(values, 0, values.size(), i);
    OnRanks(ranks, [&](Transport& transport) {
      SerialExecutor executor;
      std::vector<float> x = Values(transport.rank(), kCount), y(kCount);
      const Status status =
          SumOverRanks({x.data(), y.data(), kCount}, {"sum", 0, 1, 0}, transport, executor);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(std::memcmp(y.data(), expected.data(), kCount * sizeof(float)), 0);
      EXPECT_TRUE(SumOverRanks({}, {"sum", 0, 2, 0}, transport, executor).ok());
    });
  }
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
