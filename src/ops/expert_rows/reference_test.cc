// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The oracles against differences of their own values, and against sums written out.
#include <gtest/gtest.h>

#include <vector>

#include "ops/expert_rows/expert_rows.h"

namespace anabranch {
namespace {

using tile::Activation;

constexpr Activation kAll[] = {Activation::kSwiglu, Activation::kGeglu, Activation::kReglu,
                               Activation::kClampedSwiglu};

float Value(Activation activation, float gate, float up) {
  float hidden = -1;
  ActivateRowsReference({activation, {&gate, {1, 1}}, {&up, {1, 1}}, {&hidden, {1, 1}}});
  return hidden;
}

TEST(ExpertRowsReferenceTest, GradientsAreDifferences) {
  constexpr float kStep = 1.0f / 256;
  for (Activation activation : kAll) {
    for (float gate : {-9.0f, -1.5f, -0.25f, 0.5f, 3.0f, 6.5f, 7.5f}) {
      for (float up : {-8.0f, -2.0f, 0.75f, 7.5f}) {
        const float hidden_grad = 2;
        float gate_grad = 0, up_grad = 0;
        ActivateRowsGradReference({activation,
                                   {&gate, {1, 1}},
                                   {&up, {1, 1}},
                                   {&hidden_grad, {1, 1}},
                                   {&gate_grad, {1, 1}},
                                   {&up_grad, {1, 1}}});
        const double by_gate =
            Value(activation, gate + kStep, up) - Value(activation, gate - kStep, up);
        const double by_up =
            Value(activation, gate, up + kStep) - Value(activation, gate, up - kStep);
        // Second differences of these functions are below 2 |up|; f32 values cancel.
        EXPECT_NEAR(gate_grad, by_gate / kStep, 2e-3);
        EXPECT_NEAR(up_grad, by_up / kStep, 2e-3);
      }
    }
  }
}

TEST(ExpertRowsReferenceTest, WeightsMultiplyTheirRowAndCollectIt) {
  const std::vector<float> weights = {2, -1}, x = {1, 2, 3, 4, 5, 6}, grad = {1, 0, 2, 0, 1, 0};
  std::vector<float> out(6), weights_grad(2), x_grad(6);
  WeighRowsReference({{weights.data(), {2}}, {x.data(), {2, 3}}, {out.data(), {2, 3}}});
  EXPECT_EQ(out, (std::vector<float>{2, 4, 6, -4, -5, -6}));
  WeighRowsGradReference({{weights.data(), {2}},
                          {x.data(), {2, 3}},
                          {grad.data(), {2, 3}},
                          {weights_grad.data(), {2}},
                          {x_grad.data(), {2, 3}}});
  EXPECT_EQ(weights_grad, (std::vector<float>{7, 5}));
  EXPECT_EQ(x_grad, (std::vector<float>{2, 0, 4, 0, -1, 0}));
}

}  // namespace
}  // namespace anabranch
