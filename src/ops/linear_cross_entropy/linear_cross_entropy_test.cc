// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

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

namespace anabranch {
namespace {

struct Shape {
  int64_t tokens, hidden, vocabulary;
};

// Owns every array of a forward and a backward call. About one label in five is ignored (-1).
template <typename T, typename W>
struct Problem {
  explicit Problem(const Shape& s, float z = 0) : shape(s), z_loss(z), random(7) {
    x = Random<T>(s.tokens * s.hidden, 1);
    w = Random<W>(s.hidden * s.vocabulary, 1 / std::sqrt(static_cast<float>(s.hidden)));
    loss_grad = Random<float>(s.tokens, 1);
    labels.resize(s.tokens);
    for (int32_t& label : labels) label = random() % 5 == 0 ? -1 : random() % s.vocabulary;
    if (s.tokens == 1) labels[0] = s.vocabulary - 1;
    loss.assign(s.tokens, 99);
    normaliser.assign(s.tokens, 99);
    x_grad.assign(x.size(), FromFloat<T>(99));
    w_grad.assign(w.size(), FromFloat<W>(99));
  }
  template <typename V>
  std::vector<V> Random(int64_t count, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<V> values(count);
    for (V& value : values) value = FromFloat<V>(normal(random));
    return values;
  }
  template <typename Args>
  void SetInputs(Args& a) {
    a.z_loss = z_loss;
    a.x = ConstTensorView(x.data(), {shape.tokens, shape.hidden});
    a.w = ConstTensorView(w.data(), {shape.hidden, shape.vocabulary});
    a.labels = ConstTensorView(labels.data(), kDTypeOf<int32_t>, {shape.tokens});
  }
  LinearCrossEntropyArgs Forward() {
    LinearCrossEntropyArgs a;
    SetInputs(a);
    a.loss = TensorView(loss.data(), {shape.tokens});
    a.normaliser = TensorView(normaliser.data(), {shape.tokens});
    return a;
  }
  LinearCrossEntropyGradArgs Backward() {
    LinearCrossEntropyGradArgs a;
    SetInputs(a);
    a.normaliser = ConstTensorView(normaliser.data(), {shape.tokens});
    a.loss_grad = ConstTensorView(loss_grad.data(), {shape.tokens});
    a.x_grad = TensorView(x_grad.data(), {shape.tokens, shape.hidden});
    a.w_grad = TensorView(w_grad.data(), {shape.hidden, shape.vocabulary});
    return a;
  }

  const Shape shape;
  const float z_loss;
  std::mt19937 random;
  std::vector<T> x, x_grad;
  std::vector<W> w, w_grad;
  std::vector<float> loss_grad, loss, normaliser;
  std::vector<int32_t> labels;
};

TEST(LinearCrossEntropyReferenceTest, EqualLogitsCostTheLogarithmOfTheVocabulary) {
  Problem<float, float> p({3, 4, 10}, 0.5f);
  p.labels = {9, -1, 0};
  std::fill(p.w.begin(), p.w.end(), 0.25f);
  ASSERT_TRUE(LinearCrossEntropyReference(p.Forward()).ok());
  for (int t : {0, 2}) {
    double logit = 0;
    for (int h = 0; h < 4; ++h) logit += 0.25 * p.x[t * 4 + h];
    const double normaliser = logit + std::log(10.0);
    EXPECT_NEAR(p.normaliser[t], normaliser, 1e-6);
    EXPECT_NEAR(p.loss[t], std::log(10.0) + 0.5 * normaliser * normaliser, 1e-6);
  }
  EXPECT_EQ(p.loss[1], 0);
}

// Central differences of sum(loss_grad * loss) by a few elements of x and w. The step h = 2^-10
// leaves h^2 / 6 of the third derivative (at most about 10) and 2^-23 |loss| / h of rounding.
TEST(LinearCrossEntropyReferenceTest, GradientIsTheSlopeOfTheLoss) {
  Problem<float, float> p({6, 5, 11}, 0.1f);
  ASSERT_TRUE(LinearCrossEntropyReference(p.Forward()).ok());
  ASSERT_TRUE(LinearCrossEntropyGradReference(p.Backward()).ok());
  const auto total = [&] {
    EXPECT_TRUE(LinearCrossEntropyReference(p.Forward()).ok());
    double sum = 0;
    for (int t = 0; t < 6; ++t) sum += static_cast<double>(p.loss_grad[t]) * p.loss[t];
    return sum;
  };
  const auto check = [&](float& value, float gradient) {
    const float kept = value, step = 0x1p-10f;
    value = kept + step;
    const double above = total();
    value = kept - step;
    const double below = total();
    value = kept;
    EXPECT_NEAR(gradient, (above - below) / (2 * step), 2e-3);
  };
  for (size_t i = 0; i < p.x.size(); ++i) check(p.x[i], p.x_grad[i]);
  for (size_t i = 0; i < p.w.size(); i += 3) check(p.w[i], p.w_grad[i]);
}

}  // namespace
}  // namespace anabranch
