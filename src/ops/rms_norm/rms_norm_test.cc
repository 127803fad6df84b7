// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr double kBf16Eps = 1.0 / 128;

// Elements of either type.
struct Array {
  Array(int64_t count, DType type, std::mt19937* random) : type(type), wide(count), narrow(count) {
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < count; ++i) Set(i, random == nullptr ? 99.0f : normal(*random));
  }
  void Set(int64_t i, float value) {
    narrow[i] = ToBF16(value);
    wide[i] = type == DType::kBF16 ? ToFloat(narrow[i]) : value;
  }
  double operator[](int64_t i) const { return type == DType::kBF16 ? ToFloat(narrow[i]) : wide[i]; }
  void* data() { return type == DType::kBF16 ? static_cast<void*>(narrow.data()) : wide.data(); }
  double eps() const { return type == DType::kBF16 ? kBf16Eps : kEps; }
  TensorView View(std::initializer_list<int64_t> shape) { return {data(), type, shape}; }
  bool SameBits(const Array& other) const {
    return std::memcmp(wide.data(), other.wide.data(), wide.size() * 4) == 0 &&
           std::memcmp(narrow.data(), other.narrow.data(), narrow.size() * 2) == 0;
  }

  DType type;
  std::vector<float> wide;
  std::vector<BF16> narrow;
};

struct Problem {
  Problem(int64_t t, int64_t h, DType x_type, DType y_type, bool with_branch)
      : random(7),
        rows(t),
        columns(h),
        branched(with_branch),
        x(t * h, x_type, &random),
        branch(t * h, y_type, &random),
        weight(h, DType::kF32, &random),
        y_grad(t * h, y_type, &random),
        sum_grad(t * h, x_type, &random),
        sum(t * h, x_type, nullptr),
        y(t * h, y_type, nullptr),
        inverse(t, DType::kF32, nullptr),
        x_grad(t * h, x_type, nullptr),
        branch_grad(t * h, y_type, nullptr),
        weight_grad(h, DType::kF32, nullptr) {}
  TensorView Optional(Array& array) {
    return branched ? array.View({rows, columns}) : TensorView();
  }
  RmsNormArgs Args() {
    return {1e-6f,         x.View({rows, columns}), Optional(branch),    weight.View({columns}),
            Optional(sum), y.View({rows, columns}), inverse.View({rows})};
  }
  RmsNormGradArgs GradArgs(int64_t leaves) {
    Array& normalised = branched ? sum : x;
    return {normalised.View({rows, columns}),
            weight.View({columns}),
            inverse.View({rows}),
            y_grad.View({rows, columns}),
            Optional(sum_grad),
            x_grad.View({rows, columns}),
            Optional(branch_grad),
            weight_grad.View({columns}),
            leaves};
  }

  std::mt19937 random;
  int64_t rows, columns;
  bool branched;
  Array x, branch, weight, y_grad, sum_grad;
  Array sum, y, inverse, x_grad, branch_grad, weight_grad;
};

Status RunBoth(Problem& p, int threads, int64_t leaves = 1) {
  ThreadExecutor executor(threads);
  const RmsNormGradArgs grad = p.GradArgs(leaves);
  std::vector<float> scratch(RmsNormGradScratchBytes(grad) / sizeof(float));
  Context context{&executor, scratch.data(), RmsNormGradScratchBytes(grad)};
  ANABRANCH_RETURN_IF_ERROR(RmsNorm(p.Args(), context));
  return RmsNormGrad(grad, context);
}

TEST(RmsNormReferenceTest, OfARowOfTwo) {
  Problem p(1, 2, DType::kF32, DType::kF32, true);
  p.x.wide = {1, 2};
  p.branch.wide = {2, 2};
  p.weight.wide = {1, 10};
  ASSERT_TRUE(RmsNormReference(p.Args()).ok());
  EXPECT_NEAR(p.y[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(p.y[1], 40 / std::sqrt(12.5), 1e-5);
}

// A central difference of the oracle itself, so that its gradient is not merely a formula.
TEST(RmsNormReferenceTest, GradientIsThatOfTheFunction) {
  Problem p(2, 5, DType::kF32, DType::kF32, false);
  ASSERT_TRUE(RmsNormReference(p.Args()).ok());
  ASSERT_TRUE(RmsNormGradReference(p.GradArgs(1)).ok());
  const auto objective = [&] {
    EXPECT_TRUE(RmsNormReference(p.Args()).ok());
    double sum = 0;
    for (int i = 0; i < 10; ++i) sum += p.y[i] * p.y_grad[i];
    return sum;
  };
  const auto check = [&](float& value, double gradient) {
    const float kept = value, step = 1.0f / 128;
    value = kept + step;
    const double above = objective();
    value = kept - step;
    const double below = objective();
    value = kept;
    // f32 results of size up to some 10 leave 1e-6 * 128; the third derivative leaves step^2.
    EXPECT_NEAR((above - below) * 64, gradient, 2e-3);
  };
  for (int i = 0; i < 10; ++i) check(p.x.wide[i], p.x_grad[i]);
  for (int h = 0; h < 5; ++h) check(p.weight.wide[h], p.weight_grad[h]);
}

// A row's mean of squares has columns / 64 + 64 additions of positive terms, and half of its
// relative error shows in `inverse`. The mean in the gradient is of signed terms: its error is
// relative to their magnitudes.
void CheckAgainstReference(Problem& p, Problem& want, int64_t leaves) {
  ASSERT_TRUE(RunBoth(p, 2, leaves).ok());
  ASSERT_TRUE(RmsNormReference(want.Args()).ok());
  ASSERT_TRUE(RmsNormGradReference(want.GradArgs(1)).ok());
  const double sums = (p.columns / 64.0 + 70) * kEps;
  std::vector<double> terms(p.columns);
  for (int64_t t = 0; t < p.rows; ++t) {
    const double inverse = want.inverse[t];
    ASSERT_NEAR(p.inverse[t], inverse, sums * inverse);
    double magnitude = 0;
    for (int64_t i = t * p.columns; i < (t + 1) * p.columns; ++i) {
      const double normal = (p.branched ? want.sum[i] : want.x[i]) * inverse;
      magnitude += std::abs(want.y_grad[i] * want.weight[i % p.columns] * normal) / p.columns;
      terms[i % p.columns] += std::abs(want.y_grad[i] * normal);
    }
    for (int64_t i = t * p.columns; i < (t + 1) * p.columns; ++i) {
      ASSERT_EQ(p.sum[i], want.sum[i]);
      ASSERT_NEAR(p.y[i], want.y[i], (sums + p.y.eps()) * std::abs(want.y[i]));
      const double normal = std::abs((p.branched ? want.sum[i] : want.x[i]) * inverse);
      const double grad = std::abs(want.y_grad[i] * want.weight[i % p.columns]);
      const double size =
          inverse * (grad + normal * magnitude) + (p.branched ? std::abs(want.sum_grad[i]) : 0);
      // Twice: `inverse` enters `normal`, the mean and the result.
      ASSERT_NEAR(p.x_grad[i], want.x_grad[i], (4 * sums + p.x_grad.eps()) * size);
      if (!p.branched) continue;
      const double stored = std::abs(want.x_grad[i]);
      ASSERT_NEAR(p.branch_grad[i], want.branch_grad[i],
                  (4 * sums + p.x_grad.eps()) * size + p.branch_grad.eps() * stored);
    }
  }
  for (int64_t h = 0; h < p.columns; ++h) {
    const double bound = (p.rows + 4 + p.columns / 64.0 + 70) * kEps * terms[h];
    ASSERT_NEAR(p.weight_grad[h], want.weight_grad[h], bound);
  }
}

TEST(RmsNormTest, MatchesReferenceForEveryShapeAndType) {
  constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
  constexpr int64_t kShapes[][2] = {{1, 1}, {1, 512}, {3, 17}, {65, 64}, {200, 130}, {7, 1000}};
  for (const auto& shape : kShapes) {
    for (DType x : kTypes) {
      for (DType y : kTypes) {
        for (bool branched : {false, true}) {
          SCOPED_TRACE(testing::Message() << shape[0] << "x" << shape[1] << " " << Name(x) << " "
                                          << Name(y) << " " << branched);
          Problem p(shape[0], shape[1], x, y, branched), want(shape[0], shape[1], x, y, branched);
          CheckAgainstReference(p, want, shape[0] % 2 == 0 ? 8 : 1);
        }
      }
    }
  }
}

TEST(RmsNormTest, BitsDoNotDependOnThreads) {
  Problem one(300, 96, DType::kF32, DType::kBF16, true);
  ASSERT_TRUE(RunBoth(one, 1, 4).ok());
  for (int threads : {2, 5}) {
    Problem many(300, 96, DType::kF32, DType::kBF16, true);
    ASSERT_TRUE(RunBoth(many, threads, 4).ok());
    EXPECT_TRUE(one.y.SameBits(many.y) && one.sum.SameBits(many.sum));
    EXPECT_TRUE(one.x_grad.SameBits(many.x_grad) && one.branch_grad.SameBits(many.branch_grad));
    EXPECT_TRUE(one.weight_grad.SameBits(many.weight_grad));
  }
}

TEST(RmsNormTest, BitsDoNotDependOnTheInstructionSet) {
  constexpr int64_t kColumns = 200;
  std::mt19937 random(3);
  Array x(kColumns, DType::kF32, &random), weight(kColumns, DType::kF32, &random);
  Array y_grad(kColumns, DType::kBF16, &random), y(kColumns, DType::kBF16, nullptr);
  Array x_grad(kColumns, DType::kF32, nullptr), parts(kColumns, DType::kF32, nullptr);
  const auto run = [&](Isa isa) {
    const tile::KernelTable* kernels = tile::FindKernels(isa);
    if (kernels == nullptr) return std::string();
    std::fill(parts.wide.begin(), parts.wide.end(), 0.0f);
    const tile::NormKernels& norm = kernels->norm(DType::kF32, DType::kBF16);
    const float inverse =
        norm.forward({kColumns, 1e-6f, x.data(), nullptr, weight.wide.data(), nullptr, y.data()});
    norm.backward({kColumns, inverse, x.data(), weight.wide.data(), y_grad.data(), nullptr,
                   x_grad.data(), nullptr, parts.wide.data()});
    std::string bits(kColumns * 10, '\0');
    std::memcpy(bits.data(), y.data(), kColumns * 2);
    std::memcpy(bits.data() + kColumns * 2, x_grad.data(), kColumns * 4);
    std::memcpy(bits.data() + kColumns * 6, parts.data(), kColumns * 4);
    return bits;
  };
  const std::string want = run(Isa::kGeneric);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    const std::string bits = run(isa);
    EXPECT_TRUE(bits.empty() || bits == want) << Name(isa);
  }
}

// Two ranks with half of the rows and half of the leaves each, whose results are then added.
TEST(RmsNormTest, WeightGradientGoesOnAcrossRanks) {
  Problem whole(256, 33, DType::kF32, DType::kBF16, false);
  ASSERT_TRUE(RunBoth(whole, 2, 8).ok());
  std::vector<float> sum(33);
  for (int rank = 0; rank < 2; ++rank) {
    Problem half(128, 33, DType::kF32, DType::kBF16, false);
    half.weight = whole.weight;
    for (int64_t i = 0; i < 128 * 33; ++i) {
      half.x.Set(i, static_cast<float>(whole.x[rank * 128 * 33 + i]));
      half.y_grad.Set(i, static_cast<float>(whole.y_grad[rank * 128 * 33 + i]));
    }
    ASSERT_TRUE(RunBoth(half, 2, 4).ok());
    for (int h = 0; h < 33; ++h) sum[h] += half.weight_grad.wide[h];
  }
  EXPECT_EQ(sum, whole.weight_grad.wide);
}

TEST(RmsNormTest, NoRowsGiveAZeroGradient) {
  Problem p(0, 5, DType::kF32, DType::kBF16, true);
  ASSERT_TRUE(RunBoth(p, 2, 8).ok());
  for (int h = 0; h < 5; ++h) EXPECT_EQ(p.weight_grad[h], 0);
}

TEST(RmsNormTest, ErrorsNameArgumentAndRuleAndTouchNothing) {
  Problem p(4, 6, DType::kF32, DType::kBF16, true);
  RmsNormArgs args = p.Args();
  args.weight = p.weight.View({5});
  ThreadExecutor executor(1);
  Context context{&executor, nullptr, 0};
  Status status = RmsNorm(args, context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("rms_norm: weight is f32[5]"), std::string::npos)
      << status.message();
  args = p.Args();
  args.sum = TensorView();
  EXPECT_EQ(RmsNorm(args, context).code(), StatusCode::kInvalidArgument);
  status = RmsNormGrad(p.GradArgs(3), context);
  EXPECT_NE(status.message().find("num_leaves is 3"), std::string::npos) << status.message();
  EXPECT_EQ(RmsNormGrad(p.GradArgs(1), context).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(p.y[0], 99);
  EXPECT_EQ(p.x_grad[0], 99);
}

}  // namespace
}  // namespace anabranch
