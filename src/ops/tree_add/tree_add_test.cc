// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/tree_add/tree_add.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "base/executor.h"

namespace anabranch {
namespace {

Status Add(const std::vector<float>& a, const std::vector<float>& b, std::vector<float>* sum,
           int threads) {
  ThreadExecutor executor(threads);
  Context context{&executor, nullptr, 0};
  const auto size = [](const std::vector<float>& v) { return static_cast<int64_t>(v.size()); };
  return TreeAdd({{a.data(), {size(a)}}, {b.data(), {size(b)}}, {sum->data(), {size(*sum)}}},
                 context);
}

TEST(TreeAddTest, AddsEveryElementOnceForAnyNumberOfThreads) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t count : {0, 1, 70000, 200001}) {
    std::vector<float> a(count), b(count), sum(count), expected(count);
    for (int64_t i = 0; i < count; ++i) {
      a[i] = normal(random);
      b[i] = normal(random);
      expected[i] = a[i] + b[i];
    }
    for (int threads : {1, 3}) {
      ASSERT_TRUE(Add(a, b, &sum, threads).ok());
      ASSERT_EQ(sum, expected);
    }
    ASSERT_TRUE(Add(a, b, &a, 2).ok());  // in place
    ASSERT_EQ(a, expected);
  }
}

TEST(TreeAddTest, KeepsSubnormalNumbers) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<float> sum(1);
  ASSERT_TRUE(Add({tiny}, {tiny}, &sum, 1).ok());
  EXPECT_EQ(sum[0], 2 * tiny);
}

TEST(TreeAddTest, ErrorsNameTheShapes) {
  std::vector<float> sum(3, 7.0f);
  const Status status = Add({1, 2, 3}, {1, 2}, &sum, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("f32[2]"), std::string::npos) << status.message();
  EXPECT_EQ(sum[0], 7.0f);
}

}  // namespace
}  // namespace anabranch
