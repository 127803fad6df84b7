// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/muon/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace anabranch {
namespace {

struct Problem {
  Problem(int64_t matrices, int64_t rows, int64_t columns)
      : e(matrices), m(rows), n(columns), random(5) {
    std::normal_distribution<float> normal(0, 1);
    for (auto* array : {&gradient, &parameter, &moments}) {
      for (int64_t i = 0; i < e * m * n; ++i) array->push_back(normal(random));
    }
    new_parameter.assign(e * m * n, 99);
    new_moments = new_parameter;
  }
  MuonArgs Args(int64_t iterations, DType multiplicand, bool in_place = false) {
    MuonArgs args;
    args.iterations = iterations;
    args.multiplicand = multiplicand;
    args.scalars = ConstTensorView(&scalars.clip_factor, {kMuonScalars});
    args.gradient = ConstTensorView(gradient.data(), {e, m, n});
    args.parameter = ConstTensorView(parameter.data(), {e, m, n});
    args.m = ConstTensorView(moments.data(), {e, m, n});
    args.new_parameter = TensorView(in_place ? parameter.data() : new_parameter.data(), {e, m, n});
    args.new_m = TensorView(in_place ? moments.data() : new_moments.data(), {e, m, n});
    return args;
  }

  int64_t e, m, n;
  std::mt19937 random;
  MuonScalars scalars = {0.5f, 1.0f, 0.95f, 0.05f, 1.0f, 0.1f, 1.0f};
  std::vector<float> gradient, parameter, moments, new_parameter, new_moments;
};

Status Call(const MuonArgs& args, int threads) {
  ThreadExecutor executor(threads);
  const int64_t bytes = RoundUp(MuonScratchBytes(args, threads), kCacheLineBytes);
  std::vector<std::byte> block(bytes + kCacheLineBytes);
  const auto address = reinterpret_cast<uintptr_t>(block.data());
  return Muon(args, {&executor, block.data() + (-address & (kCacheLineBytes - 1)), bytes});
}

TEST(MuonReferenceTest, KeepsARotationAndEvensOutAScale) {
  Problem p(1, 2, 2);
  // Every direction of 3 R, R a rotation, has one singular value: |u| = 3 sqrt 2, so X starts at
  // R / sqrt 2 and stays a multiple of R: f(f(1 / sqrt 2)), f(s) = a s + b s^3 + c s^5.
  p.moments = {1.8f, -2.4f, 2.4f, 1.8f};
  p.gradient = {0, 0, 0, 0};
  p.parameter = {0, 0, 0, 0};
  ASSERT_TRUE(MuonReference(p.Args(2, DType::kF32)).ok());
  const auto f = [](double s) {
    return 3.4445 * s - 4.7750 * std::pow(s, 3) + 2.0315 * std::pow(s, 5);
  };
  const double want = f(f(std::sqrt(0.5)));
  EXPECT_NEAR(p.new_parameter[0], -0.6 * want, 1e-5);
  EXPECT_NEAR(p.new_parameter[1], 0.8 * want, 1e-5);
}

// With |X|_2 <= 1.2 throughout and r = min(M, N), a product of n terms is off by
// u |A|_F |B|_F, u = (n + 2) 2^-24; one iteration's roundings add up to at most 37 u r in the
// Frobenius norm, and the polynomial's slope, at most 4, carries them on.
double Bound(int64_t m, int64_t n, int64_t iterations) {
  const double u = (std::max(m, n) + 2) * std::ldexp(1.0, -24);
  return 37 * u * std::min(m, n) * (std::pow(4.0, iterations) - 1) / 3;
}

TEST(MuonTest, MatchesReference) {
  constexpr int64_t kShapes[][3] = {{1, 1, 1}, {1, 24, 40}, {5, 24, 40}, {6, 33, 10}, {2, 7, 7}};
  for (const auto& [e, m, n] : kShapes) {
    for (int64_t iterations : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << e << " " << m << " " << n << " " << iterations);
      Problem p(e, m, n), want(e, m, n);
      ASSERT_TRUE(Call(p.Args(iterations, DType::kF32), 2).ok());
      ASSERT_TRUE(MuonReference(want.Args(iterations, DType::kF32)).ok());
      for (int64_t matrix = 0; matrix < e; ++matrix) {
        double squares = 0;
        for (int64_t i = matrix * m * n; i < (matrix + 1) * m * n; ++i) {
          squares += std::pow(p.new_parameter[i] - want.new_parameter[i], 2);
          const double terms = std::abs(p.moments[i]) + std::abs(p.gradient[i]);
          ASSERT_NEAR(p.new_moments[i], want.new_moments[i], 3 * std::ldexp(terms, -24));
        }
        EXPECT_LE(std::sqrt(squares), Bound(m, n, iterations) + std::ldexp(8.0, -22));
      }
    }
  }
}

// Five iterations leave the singular values of a well-conditioned matrix between 0.7 and 1.2, and
// bf16 multiplicands move them by some hundredths: |s^2 - 1| is below 0.69 for each of them.
TEST(MuonTest, SingularValuesComeOutNearOne) {
  for (bool tall : {false, true}) {
    const int64_t m = tall ? 40 : 24, n = tall ? 24 : 40, side = 24;
    Problem p(4, m, n);
    p.scalars.weight_decay = 0;
    MuonArgs args = p.Args(5, DType::kBF16);
    args.emit_update = true;
    ASSERT_TRUE(Call(args, 2).ok());
    for (int64_t e = 0; e < 4; ++e) {
      const float* x = p.new_parameter.data() + e * m * n;
      double off = 0;
      for (int64_t i = 0; i < side; ++i) {
        for (int64_t j = 0; j < side; ++j) {
          double dot = 0;
          for (int64_t k = 0; k < 40; ++k) {
            dot += tall ? x[k * n + i] * x[k * n + j] : x[i * n + k] * x[j * n + k];
          }
          off += std::pow(dot - (i == j), 2);
        }
      }
      EXPECT_LE(std::sqrt(off), 0.69 * std::sqrt(side));
    }
  }
}

TEST(MuonTest, BitsDoNotDependOnThreadsOrPlace) {
  for (int64_t e : {1, 7}) {
    Problem one(e, 70, 33);
    ASSERT_TRUE(Call(one.Args(5, DType::kBF16), 1).ok());
    for (int threads : {2, 3}) {
      Problem many(e, 70, 33);
      ASSERT_TRUE(Call(many.Args(5, DType::kBF16, /*in_place=*/true), threads).ok());
      EXPECT_EQ(one.new_parameter, many.parameter);
      EXPECT_EQ(one.new_moments, many.moments);
    }
  }
}

TEST(MuonTest, EachExpertForItself) {
  Problem all(4, 12, 20), one(4, 12, 20);
  for (int64_t i = 240; i < 480; ++i) all.gradient[i] *= 1000;  // expert 1 alone
  ASSERT_TRUE(Call(all.Args(5, DType::kBF16), 2).ok());
  ASSERT_TRUE(Call(one.Args(5, DType::kBF16), 2).ok());
  for (int64_t i = 0; i < 960; ++i) {
    if (i < 240 || i >= 480) {
      EXPECT_EQ(all.new_parameter[i], one.new_parameter[i]);
    }
  }
  EXPECT_NE(all.new_parameter[240], one.new_parameter[240]);
}

TEST(MuonTest, AZeroGradientMovesNothing) {
  Problem p(3, 8, 8);
  p.scalars.weight_decay = 0;
  std::fill(p.gradient.begin(), p.gradient.end(), 0.0f);
  std::fill(p.moments.begin(), p.moments.end(), 0.0f);
  ASSERT_TRUE(Call(p.Args(5, DType::kBF16), 2).ok());
  EXPECT_EQ(p.new_parameter, p.parameter);
}

TEST(MuonTest, ASkippedStepKeepsEveryBit) {
  for (bool in_place : {false, true}) {
    Problem p(3, 8, 9);
    p.scalars.applied = 0;
    std::fill(p.gradient.begin(), p.gradient.end(), std::numeric_limits<float>::quiet_NaN());
    const Problem kept = p;
    ASSERT_TRUE(Call(p.Args(5, DType::kBF16, in_place), 2).ok());
    EXPECT_EQ(kept.parameter, in_place ? p.parameter : p.new_parameter);
    EXPECT_EQ(kept.moments, in_place ? p.moments : p.new_moments);
  }
}

TEST(MuonTest, ErrorsNameArgumentAndRuleAndTouchNothing) {
  Problem p(2, 3, 4);
  MuonArgs args = p.Args(5, DType::kBF16);
  args.m = ConstTensorView(p.moments.data(), {2, 4, 3});
  const Status status = Call(args, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("muon: m is f32[2,4,3] and gradient f32[2,3,4]"),
            std::string::npos)
      << status.message();
  args = p.Args(0, DType::kBF16);
  EXPECT_EQ(Call(args, 1).code(), StatusCode::kInvalidArgument);
  ThreadExecutor executor(1);
  args = p.Args(5, DType::kBF16);
  EXPECT_EQ(Muon(args, {&executor, nullptr, 0}).code(), StatusCode::kResourceExhausted);
  for (float value : p.new_parameter) EXPECT_EQ(value, 99);
}

}  // namespace
}  // namespace anabranch
