// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/executor.h"

namespace anabranch {
namespace {

template <typename T>
std::vector<T> Random(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(size);
  for (T& value : values) value = FromFloat<T>(normal(random));
  return values;
}

template <typename Args>
Status RunOp(Status (*op)(const Args&, const Context&), int64_t (*scratch_bytes)(const Args&, int),
             const Args& args, int threads) {
  ThreadExecutor executor(threads);
  const int64_t bytes = RoundUp(scratch_bytes(args, threads), kCacheLineBytes);
  std::vector<std::byte> block(bytes + kCacheLineBytes);
  const auto address = reinterpret_cast<uintptr_t>(block.data());
  return op(args, {&executor, block.data() + (-address & (kCacheLineBytes - 1)), bytes});
}

struct Sum {
  double value = 0;
  double magnitude = 0;
  int64_t terms = 0;
  void Add(double a, double b) {
    value += a * b;
    magnitude += std::abs(a * b);
    ++terms;
  }
  // An f32 sum of n products in any order.
  double Bound() const { return (terms + 2) * std::ldexp(1.0, -24) * magnitude; }
};

template <typename Row, typename Weight>
double Multiplicand(Weight w) {
  return sizeof(Row) == 2 ? ToFloat(ToBF16(ToFloat(w))) : ToFloat(w);
}

// One matrix, f32 results: the three products against sums in double.
template <typename Row, typename Weight>
void CheckLinear(int64_t m, int64_t k, int64_t n, int threads) {
  const auto x = Random<Row>(m * k, 1);
  const auto w = Random<Weight>(k * n, 2);
  const auto dy = Random<Row>(m * n, 3);
  std::vector<float> y(m * n), dx(m * k), dw(k * n);
  const LinearArgs forward{{x.data(), {m, k}}, {w.data(), {k, n}}, {y.data(), {m, n}}};
  const LinearDgradArgs dgrad{{dy.data(), {m, n}}, {w.data(), {k, n}}, {dx.data(), {m, k}}};
  const LinearWgradArgs wgrad{{x.data(), {m, k}}, {dy.data(), {m, n}}, {dw.data(), {k, n}}};
  ASSERT_TRUE(RunOp(Linear, LinearScratchBytes, forward, threads).ok());
  ASSERT_TRUE(RunOp(LinearDgrad, LinearDgradScratchBytes, dgrad, threads).ok());
  ASSERT_TRUE(RunOp(LinearWgrad, LinearWgradScratchBytes, wgrad, threads).ok());
  std::vector<Sum> y_sums(m * n), dx_sums(m * k), dw_sums(k * n);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const double weight = Multiplicand<Row>(w[i * n + j]);
        y_sums[r * n + j].Add(ToFloat(x[r * k + i]), weight);
        dx_sums[r * k + i].Add(ToFloat(dy[r * n + j]), weight);
        dw_sums[i * n + j].Add(ToFloat(x[r * k + i]), ToFloat(dy[r * n + j]));
      }
    }
  }
  const auto expect_near = [](const std::vector<float>& actual, const std::vector<Sum>& sums) {
    for (size_t i = 0; i < sums.size(); ++i) {
      ASSERT_LE(std::abs(actual[i] - sums[i].value), sums[i].Bound()) << i;
    }
  };
  expect_near(y, y_sums);
  expect_near(dx, dx_sums);
  expect_near(dw, dw_sums);
}

TEST(LinearTest, MatchesSumsInDouble) {
  for (int threads : {1, 3}) {
    CheckLinear<float, float>(37, 19, 70, threads);
    CheckLinear<BF16, BF16>(37, 19, 70, threads);
    CheckLinear<BF16, float>(37, 19, 70, threads);
    CheckLinear<BF16, float>(700, 64, 64, threads);  // one panel: rows are split over workers
    CheckLinear<BF16, BF16>(1, 1, 1, threads);
  }
}

TEST(LinearTest, LeavesOfTheWeightGradientAddUpInPairs) {
  constexpr int64_t kRows = 300, kIn = 50, kOut = 70;
  const auto x = Random<BF16>(kRows * kIn, 1);
  const auto dy = Random<BF16>(kRows * kOut, 2);
  const auto wgrad = [&](int64_t first, int64_t rows, int64_t leaves) {
    std::vector<float> dw(kIn * kOut, NAN);
    const LinearWgradArgs args{{x.data() + first * kIn, {rows, kIn}},
                               {dy.data() + first * kOut, {rows, kOut}},
                               {dw.data(), {kIn, kOut}},
                               leaves};
    EXPECT_TRUE(RunOp(LinearWgrad, LinearWgradScratchBytes, args, 2).ok());
    return dw;
  };
  std::vector<float> sum;
  for (int64_t half : {0, 1}) {
    const std::vector<float> left = wgrad(half * 150, 75, 1), right = wgrad(half * 150 + 75, 75, 1);
    std::vector<float> pair(left.size());
    for (size_t i = 0; i < pair.size(); ++i) pair[i] = left[i] + right[i];
    EXPECT_EQ(wgrad(half * 150, 150, 2), pair);
    if (half == 0) sum = pair;
    if (half == 1) {
      for (size_t i = 0; i < pair.size(); ++i) sum[i] += pair[i];
    }
  }
  EXPECT_EQ(wgrad(0, kRows, 4), sum);
}

TEST(LinearTest, LeavesMustBeAPowerOfTwo) {
  const auto x = Random<float>(6, 1);
  std::vector<float> dw(9, NAN);
  const LinearWgradArgs args{{x.data(), {2, 3}}, {x.data(), {2, 3}}, {dw.data(), {3, 3}}, 3};
  const Status status = RunOp(LinearWgrad, LinearWgradScratchBytes, args, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("num_leaves=3"), std::string::npos) << status.message();
  EXPECT_TRUE(std::isnan(dw[0]));
}

TEST(LinearTest, ErrorsNameTheRule) {
  const auto x = Random<float>(6, 1);
  std::vector<float> y(8, NAN);
  const LinearArgs args{{x.data(), {2, 3}}, {x.data(), {2, 3}}, {y.data(), {2, 3}}};
  const Status status = RunOp(Linear, LinearScratchBytes, args, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("f32[2,3]"), std::string::npos) << status.message();
  EXPECT_TRUE(std::isnan(y[0]));
  const LinearArgs no_matrix{{x.data(), {2, 3}}, {x.data(), {6}}, {y.data(), {2, 3}}};
  EXPECT_EQ(RunOp(Linear, LinearScratchBytes, no_matrix, 1).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace anabranch
