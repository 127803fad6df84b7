// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/dtype.h"

namespace anabranch {
namespace {

// Elements of either type.
struct Array {
  Array(int64_t count, DType type, std::mt19937 *random)
      : type(type), wide(count), narrow(count) {
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < count; ++i)
      Set(i, random == nullptr ? 99.0f : normal(*random));
  }
  void Set(int64_t i, float value) {
    narrow[i] = ToBF16(value);
    wide[i] = type == DType::kBF16 ? ToFloat(narrow[i]) : value;
  }
  double operator[](int64_t i) const {
    return type == DType::kBF16 ? ToFloat(narrow[i]) : wide[i];
  }
  void *data() {
    return type == DType::kBF16 ? static_cast<void *>(narrow.data())
                                : wide.data();
  }
  TensorView View(std::initializer_list<int64_t> shape) {
    return {data(), type, shape};
  }

  DType type;
  std::vector<float> wide;
  std::vector<BF16> narrow;
};

struct Problem {
  Problem(int64_t t, int64_t h, DType x_type, DType y_type, bool with_branch)
      : random(7), rows(t), columns(h), branched(with_branch),
        x(t * h, x_type, &random), branch(t * h, y_type, &random),
        weight(h, DType::kF32, &random), y_grad(t * h, y_type, &random),
        sum_grad(t * h, x_type, &random), sum(t * h, x_type, nullptr),
        y(t * h, y_type, nullptr), inverse(t, DType::kF32, nullptr),
        x_grad(t * h, x_type, nullptr), branch_grad(t * h, y_type, nullptr),
        weight_grad(h, DType::kF32, nullptr) {}
  TensorView Optional(Array &array) {
    return branched ? array.View({rows, columns}) : TensorView();
  }
  RmsNormArgs Args() {
    return {1e-6f,
            x.View({rows, columns}),
            Optional(branch),
            weight.View({columns}),
            Optional(sum),
            y.View({rows, columns}),
            inverse.View({rows})};
  }
  RmsNormGradArgs GradArgs(int64_t leaves) {
    Array &normalised = branched ? sum : x;
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

TEST(RmsNormReferenceTest, OfARowOfTwo) {
  Problem p(1, 2, DType::kF32, DType::kF32, true);
  p.x.wide = {1, 2};
  p.branch.wide = {2, 2};
  p.weight.wide = {1, 10};
  ASSERT_TRUE(RmsNormReference(p.Args()).ok());
  EXPECT_NEAR(p.y[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(p.y[1], 40 / std::sqrt(12.5), 1e-5);
}

// A central difference of the oracle itself, so that its gradient is not merely
// a formula.
TEST(RmsNormReferenceTest, GradientIsThatOfTheFunction) {
  Problem p(2, 5, DType::kF32, DType::kF32, false);
  ASSERT_TRUE(RmsNormReference(p.Args()).ok());
  ASSERT_TRUE(RmsNormGradReference(p.GradArgs(1)).ok());
  const auto objective = [&] {
    EXPECT_TRUE(RmsNormReference(p.Args()).ok());
    double sum = 0;
    for (int i = 0; i < 10; ++i)
      sum += p.y[i] * p.y_grad[i];
    return sum;
  };
  const auto check = [&](float &value, double gradient) {
    const float kept = value, step = 1.0f / 128;
    value = kept + step;
    const double above = objective();
    value = kept - step;
    const double below = objective();
    value = kept;
    // f32 results of size up to some 10 leave 1e-6 * 128; the third derivative
    // leaves step^2.
    EXPECT_NEAR((above - below) * 64, gradient, 2e-3);
  };
  for (int i = 0; i < 10; ++i)
    check(p.x.wide[i], p.x_grad[i]);
  for (int h = 0; h < 5; ++h)
    check(p.weight.wide[h], p.weight_grad[h]);
}

} // namespace
} // namespace anabranch
