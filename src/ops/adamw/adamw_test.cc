// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

tile::AdamwScalars Step(int step) {
  tile::AdamwScalars s;
  s.clip_factor = 0.37f;
  s.learning_rate = 3e-3f;
  s.beta1 = 0.9f;
  s.one_minus_beta1 = 0.1f;
  s.beta2 = 0.95f;
  s.one_minus_beta2 = 0.05f;
  s.epsilon = 1e-8f;
  s.weight_decay = 0.1f;
  s.correction1 = static_cast<float>(1 / (1 - std::pow(0.9, step)));
  s.correction2 = static_cast<float>(1 / (1 - std::pow(0.95, step)));
  s.applied = 1;
  return s;
}

// One parameter with its moments, gradient and results.
struct Problem {
  explicit Problem(int64_t count, uint32_t seed = 1) : random(seed) {
    std::normal_distribution<float> normal(0, 1);
    for (auto* array : {&gradient, &parameter, &m, &v}) {
      for (int64_t i = 0; i < count; ++i) array->push_back(normal(random));
    }
    for (float& value : v) value = value * value;
    if (count > 3) gradient[3] = m[3] = v[3] = 0;  // nothing ever happened here
    new_parameter.assign(count, 99);
    new_m = new_v = new_parameter;
  }
  AdamwArgs Args(bool in_place = false) {
    const int64_t count = parameter.size();
    AdamwArgs a;
    a.scalars = ConstTensorView(&scalars.clip_factor, {kAdamwScalars});
    a.gradient = ConstTensorView(gradient.data(), {count});
    a.parameter = ConstTensorView(parameter.data(), {count});
    a.m = ConstTensorView(m.data(), {count});
    a.v = ConstTensorView(v.data(), {count});
    a.new_parameter = TensorView(in_place ? parameter.data() : new_parameter.data(), {count});
    a.new_m = TensorView(in_place ? m.data() : new_m.data(), {count});
    a.new_v = TensorView(in_place ? v.data() : new_v.data(), {count});
    return a;
  }

  std::mt19937 random;
  tile::AdamwScalars scalars = Step(3);
  std::vector<float> gradient, parameter, m, v, new_parameter, new_m, new_v;
};

TEST(AdamwReferenceTest, FirstStepMovesByTheLearningRate) {
  Problem p(5);
  p.scalars = Step(1);
  p.scalars.weight_decay = 0;
  std::fill(p.m.begin(), p.m.end(), 0.0f);
  std::fill(p.v.begin(), p.v.end(), 0.0f);
  ASSERT_TRUE(AdamwReference(p.Args()).ok());
  for (int i = 0; i < 5; ++i) {
    const float sign = static_cast<float>((p.gradient[i] > 0) - (p.gradient[i] < 0));
    EXPECT_NEAR(p.new_parameter[i], p.parameter[i] - 3e-3f * sign, 1e-6);
  }
  p.scalars.weight_decay = 0.1f;
  std::fill(p.gradient.begin(), p.gradient.end(), 0.0f);
  ASSERT_TRUE(AdamwReference(p.Args()).ok());
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(p.new_parameter[i], p.parameter[i] * (1 - 3e-4f), 1e-6);
  }
}

TEST(SumOfSquaresReferenceTest, OfAFewNumbers) {
  const float values[] = {1, -2, 3};
  float sum = 99;
  ASSERT_TRUE(SumOfSquaresReference({ConstTensorView(values, {3}), TensorView(&sum, {1})}).ok());
  EXPECT_EQ(sum, 14);
}

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr int64_t kCounts[] = {0, 1, 5, 16, 63, 1000, 65536, 65537, 200003};

Status Call(const AdamwArgs& args, int threads) {
  ThreadExecutor executor(threads);
  Context context{&executor, nullptr, 0};
  return Adamw(args, context);
}

template <typename V>
bool SameBits(const std::vector<V>& a, const std::vector<V>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(V)) == 0);
}

// Rounding is relative, and nothing cancels but the two terms of m and of the parameter: m is off
// by 2 eps of its terms, the update by at most 8 roundings of each of its terms and m's own error.
TEST(AdamwTest, MatchesReferenceForEveryLength) {
  for (int64_t count : kCounts) {
    Problem p(count), want(count);
    ASSERT_TRUE(Call(p.Args(), 2).ok());
    ASSERT_TRUE(AdamwReference(want.Args()).ok());
    const tile::AdamwScalars& s = p.scalars;
    for (int64_t i = 0; i < count; ++i) {
      const double terms =
          std::abs(s.beta1 * p.m[i]) + std::abs(s.one_minus_beta1 * s.clip_factor * p.gradient[i]);
      ASSERT_NEAR(p.new_m[i], want.new_m[i], 2 * kEps * terms) << i;
      ASSERT_NEAR(p.new_v[i], want.new_v[i], 4 * kEps * want.new_v[i]) << i;
      const double root = std::sqrt(s.correction2 * want.new_v[i]) + s.epsilon;
      const double size = s.learning_rate * (s.correction1 * terms / root +
                                             s.weight_decay * std::abs(p.parameter[i]));
      const double bound = kEps * (8 * size + std::abs(p.parameter[i]));
      ASSERT_NEAR(p.new_parameter[i], want.new_parameter[i], bound) << i;
    }
  }
}

TEST(AdamwTest, BitsDoNotDependOnThreadsOrPlace) {
  Problem one(200003);
  ASSERT_TRUE(Call(one.Args(), 1).ok());
  for (int threads : {2, 3, 7}) {
    Problem many(200003);
    ASSERT_TRUE(Call(many.Args(/*in_place=*/true), threads).ok());
    EXPECT_TRUE(SameBits(one.new_parameter, many.parameter));
    EXPECT_TRUE(SameBits(one.new_m, many.m));
    EXPECT_TRUE(SameBits(one.new_v, many.v));
  }
}

// Tables whose arithmetic rounds each operation on its own must agree in every bit.
TEST(AdamwTest, BitsDoNotDependOnTheInstructionSet) {
  Problem want(1003);
  const auto run = [](Problem& p, Isa isa) {
    const tile::KernelTable* kernels = tile::FindKernels(isa);
    if (kernels == nullptr) return false;
    kernels->optimizer.adamw(p.scalars,
                             {1003, p.gradient.data(), p.parameter.data(), p.m.data(), p.v.data(),
                              p.new_parameter.data(), p.new_m.data(), p.new_v.data()},
                             false);
    return true;
  };
  ASSERT_TRUE(run(want, Isa::kGeneric));
  const float sum = tile::FindKernels(Isa::kGeneric)->optimizer.sum_of_squares(want.m.data(), 1003);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    Problem p(1003);
    if (!run(p, isa)) continue;
    EXPECT_TRUE(SameBits(want.new_parameter, p.new_parameter)) << Name(isa);
    EXPECT_TRUE(SameBits(want.new_m, p.new_m)) << Name(isa);
    EXPECT_TRUE(SameBits(want.new_v, p.new_v)) << Name(isa);
    EXPECT_EQ(tile::FindKernels(isa)->optimizer.sum_of_squares(p.m.data(), 1003), sum) << Name(isa);
  }
}

TEST(AdamwTest, TheUpdateAddsUpToTheParameter) {
  Problem whole(1000), update(1000);
  ASSERT_TRUE(Call(whole.Args(), 2).ok());
  AdamwArgs args = update.Args();
  args.emit_update = true;
  ASSERT_TRUE(Call(args, 2).ok());
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(whole.new_parameter[i], update.parameter[i] + update.new_parameter[i]);
  }
  EXPECT_TRUE(SameBits(whole.new_m, update.new_m) && SameBits(whole.new_v, update.new_v));
}

TEST(AdamwTest, D10ASkippedStepKeepsEveryBit) {
  for (bool in_place : {false, true}) {
    Problem p(70000);
    p.scalars.applied = 0;
    p.scalars.clip_factor = std::numeric_limits<float>::quiet_NaN();
    std::fill(p.gradient.begin(), p.gradient.end(), std::numeric_limits<float>::infinity());
    const Problem kept = p;
    ASSERT_TRUE(Call(p.Args(in_place), 2).ok());
    EXPECT_TRUE(SameBits(kept.parameter, in_place ? p.parameter : p.new_parameter));
    EXPECT_TRUE(SameBits(kept.m, in_place ? p.m : p.new_m));
    EXPECT_TRUE(SameBits(kept.v, in_place ? p.v : p.new_v));
  }
}

TEST(AdamwTest, ErrorsNameArgumentAndRuleAndTouchNothing) {
  Problem p(6);
  AdamwArgs args = p.Args();
  args.v = ConstTensorView(p.v.data(), {5});
  Status status = Call(args, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("adamw: v is f32[5] and parameter f32[6]"), std::string::npos)
      << status.message();
  args = p.Args();
  args.scalars = ConstTensorView(p.m.data(), {3});
  status = Call(args, 1);
  EXPECT_NE(status.message().find("scalars is f32[3]"), std::string::npos) << status.message();
  for (float value : p.new_parameter) EXPECT_EQ(value, 99);
}

// A block's sums are of at most kSquareBlock / 64 + 64 terms; all terms are positive.
TEST(SumOfSquaresTest, MatchesReferenceAndDoesNotDependOnThreads) {
  for (int64_t count : kCounts) {
    Problem p(count);
    float want = 0, got[3];
    const ConstTensorView values(p.gradient.data(), {count});
    ASSERT_TRUE(SumOfSquaresReference({values, TensorView(&want, {1})}).ok());
    for (int threads = 1; threads <= 3; ++threads) {
      const SumOfSquaresArgs args{values, TensorView(&got[threads - 1], {1})};
      ThreadExecutor executor(threads);
      std::vector<double> scratch(SumOfSquaresScratchBytes(args) / sizeof(double));
      Context context{&executor, scratch.data(), SumOfSquaresScratchBytes(args)};
      ASSERT_TRUE(SumOfSquares(args, context).ok());
    }
    EXPECT_NEAR(got[0], want, want * kEps * (kSquareBlock / 64 + 64));
    EXPECT_EQ(got[0], got[1]);
    EXPECT_EQ(got[0], got[2]);
  }
}

TEST(SumOfSquaresTest, RunsAreSummedAsIfEachWereAlone) {
  constexpr int64_t kRuns = 3, kCount = kSquareBlock + 77;
  Problem p(kRuns * kCount);
  const auto sum = [&](int64_t first, int64_t count, float* out, int64_t runs) {
    const SumOfSquaresArgs args{ConstTensorView(p.gradient.data() + first, {count}),
                                TensorView(out, {runs})};
    ThreadExecutor executor(2);
    std::vector<double> scratch(SumOfSquaresScratchBytes(args) / sizeof(double));
    Context context{&executor, scratch.data(), SumOfSquaresScratchBytes(args)};
    return SumOfSquares(args, context);
  };
  float together[kRuns];
  ASSERT_TRUE(sum(0, kRuns * kCount, together, kRuns).ok());
  for (int64_t run = 0; run < kRuns; ++run) {
    float alone = 0;
    ASSERT_TRUE(sum(run * kCount, kCount, &alone, 1).ok());
    EXPECT_EQ(together[run], alone) << run;
  }
  EXPECT_EQ(sum(0, kCount, together, 2).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace anabranch
