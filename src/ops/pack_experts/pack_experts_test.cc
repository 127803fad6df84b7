// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/pack_experts/pack_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace anabranch {
namespace {

template <typename W>
struct Problem {
  Problem(int64_t experts, int64_t hidden, int64_t width) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const int64_t count = experts * hidden * width;
    for (std::vector<W>* weights : {&gate, &up, &down}) {
      for (int64_t i = 0; i < count; ++i) weights->push_back(FromFloat<W>(normal(random)));
    }
    args.w_gate = ConstTensorView(gate.data(), {experts, hidden, width});
    args.w_up = ConstTensorView(up.data(), {experts, hidden, width});
    args.w_down = ConstTensorView(down.data(), {experts, width, hidden});
    const auto make = [&](ExpertPanel kind, std::vector<BF16>* panels) {
      const ExpertPanelShape shape = ShapeOf(kind, DType::kBF16, hidden, width);
      panels->assign(experts * shape.panels * 2 * shape.panel_words(), FromFloat<BF16>(99));
      return TensorView(panels->data(), {experts, shape.panels, 2 * shape.words, 64});
    };
    args.packed = {make(ExpertPanel::kGateUp, &panels[0]), make(ExpertPanel::kDown, &panels[1]),
                   make(ExpertPanel::kDownTransposed, &panels[2]),
                   make(ExpertPanel::kGateUpTransposed, &panels[3])};
  }

  Status Run(int threads) {
    ThreadExecutor executor(threads);
    std::vector<std::max_align_t> block(PackExpertsScratchBytes(args, threads) / 16 + 8);
    void* scratch = block.data();
    size_t bytes = block.size() * 16;
    std::align(kCacheLineBytes, PackExpertsScratchBytes(args, threads), scratch, bytes);
    Context context{&executor, scratch, static_cast<int64_t>(bytes)};
    return PackExperts(args, context);
  }

  std::vector<W> gate, up, down;
  std::vector<BF16> panels[4];
  PackExpertsArgs args;
};

template <typename W>
void CheckAgainstReference(int64_t experts, int64_t hidden, int64_t width) {
  for (int threads : {1, 3}) {
    Problem<W> fast(experts, hidden, width), exact(experts, hidden, width);
    const Status status = fast.Run(threads);
    ASSERT_TRUE(status.ok()) << status.message();
    PackExpertsReference(exact.args);
    for (int i = 0; i < 4; ++i) {
      const auto same = [](BF16 a, BF16 b) { return a.bits == b.bits; };
      EXPECT_TRUE(std::equal(fast.panels[i].begin(), fast.panels[i].end(), exact.panels[i].begin(),
                             exact.panels[i].end(), same))
          << "panels " << i << " of " << experts << " x " << hidden << " x " << width;
    }
  }
}

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

TEST(PackExpertsTest, EqualsReferenceOnEveryShape) {
  for (const auto& [hidden, width] : {std::pair{64, 32}, {130, 65}, {7, 3}, {66, 100}, {1, 1}}) {
    CheckAgainstReference<float>(3, hidden, width);
    CheckAgainstReference<BF16>(3, hidden, width);
  }
  CheckAgainstReference<BF16>(0, 64, 32);
}

TEST(PackExpertsTest, ErrorsNameArgumentAndRule) {
  Problem<BF16> p(2, 64, 32);
  p.args.packed.down = p.args.packed.gate_up;
  const Status status = p.Run(1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("packed down is bf16[2,1,64,64]; must be bf16[2,1,32,64]"),
            std::string::npos)
      << status.message();
  p.args.w_up = p.args.w_down;
  EXPECT_NE(p.Run(1).message().find("w_up bf16[2,32,64]"), std::string::npos);
  for (const auto& panels : p.panels) {
    for (BF16 value : panels) ASSERT_EQ(ToFloat(value), 99);
  }
}

}  // namespace
}  // namespace anabranch
