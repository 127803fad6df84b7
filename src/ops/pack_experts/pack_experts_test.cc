// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/pack_experts/pack_experts.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace anabranch {
namespace {

TEST(PackExpertsReferenceTest, PutsPairsOfKSideBySide) {
  // One expert of H = 3 x F = 1: gate {1, 2, 3}, up {4, 5, 6}, down {7, 8, 9}.
  const float gate[] = {1, 2, 3}, up[] = {4, 5, 6}, down[] = {7, 8, 9};
  std::array<BF16, 4 * 64> gate_up, down_transposed, gate_up_transposed;
  std::array<BF16, 2 * 64> down_panels;
  PackExpertsArgs args;
  args.w_gate = ConstTensorView(gate, {1, 3, 1});
  args.w_up = ConstTensorView(up, {1, 3, 1});
  args.w_down = ConstTensorView(down, {1, 1, 3});
  args.packed = {TensorView(gate_up.data(), {1, 1, 4, 64}),
                 TensorView(down_panels.data(), {1, 1, 2, 64}),
                 TensorView(down_transposed.data(), {1, 1, 4, 64}),
                 TensorView(gate_up_transposed.data(), {1, 1, 4, 64})};
  PackExpertsReference(args);
  const auto expect = [](const auto& panel, std::vector<std::pair<int, float>> elements) {
    std::vector<float> want(panel.size());
    for (const auto& [at, value] : elements) want[at] = value;
    for (size_t i = 0; i < panel.size(); ++i) EXPECT_EQ(ToFloat(panel[i]), want[i]) << i;
  };
  expect(gate_up, {{0, 1}, {1, 2}, {128, 3}, {64, 4}, {65, 5}, {192, 6}});
  expect(down_panels, {{0, 7}, {2, 8}, {4, 9}});
  expect(down_transposed, {{0, 7}, {1, 8}, {128, 9}});
  expect(gate_up_transposed, {{0, 1}, {2, 2}, {4, 3}, {128, 4}, {130, 5}, {132, 6}});
}

}  // namespace
}  // namespace anabranch
