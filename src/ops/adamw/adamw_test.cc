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

}  // namespace
}  // namespace anabranch
