// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/muon/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace anabranch {
namespace {

struct Problem {
  Problem(int64_t matrices, int64_t rows, int64_t columns)
      : e(matrices), m(rows), n(columns), random(5) {
    std::normal_distribution<float> normal(0, 1);
    for (auto *array : {&gradient, &parameter, &moments}) {
      for (int64_t i = 0; i < e * m * n; ++i)
        array->push_back(normal(random));
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
    args.new_parameter = TensorView(
        in_place ? parameter.data() : new_parameter.data(), {e, m, n});
    args.new_m =
        TensorView(in_place ? moments.data() : new_moments.data(), {e, m, n});
    return args;
  }

  int64_t e, m, n;
  std::mt19937 random;
  MuonScalars scalars = {0.5f, 1.0f, 0.95f, 0.05f, 1.0f, 0.1f, 1.0f};
  std::vector<float> gradient, parameter, moments, new_parameter, new_moments;
};

TEST(MuonReferenceTest, KeepsARotationAndEvensOutAScale) {
  Problem p(1, 2, 2);
  // Every direction of 3 R, R a rotation, has one singular value: |u| = 3 sqrt
  // 2, so X starts at R / sqrt 2 and stays a multiple of R: f(f(1 / sqrt 2)),
  // f(s) = a s + b s^3 + c s^5.
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

} // namespace
} // namespace anabranch
