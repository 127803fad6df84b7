// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The oracles against an example worked out by hand.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "comm/expert_parallel/combine.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/plan.h"

namespace anabranch::expert_parallel {
namespace {

// Two ranks, three experts: 0 and 2 on rank 1, 1 on rank 0; groups begin at even rows.
//   rank 0: token 0 -> {2, 1}, token 1 -> {-1, 2}       rank 1: token 0 -> {2, 0}
// Rank 0's buffer: expert 1: (rank 0, token 0), pad. Rank 1's: expert 0: (rank 1, token 0), pad;
// expert 2: (0, 0), (0, 1), (1, 0), pad.
class ReferenceTest : public testing::Test {
 protected:
  const std::array<int32_t, 3> rank_of_expert_ = {1, 0, 1};
  const std::vector<int32_t> ids_[2] = {{2, 1, -1, 2}, {2, 0}};
  const ConstTensorView experts_[2] = {ConstTensorView(ids_[0].data(), {2, 2}),
                                       ConstTensorView(ids_[1].data(), {1, 2})};
  const Group group_ = {.ranks = 2,
                        .num_experts = 3,
                        .topk = 2,
                        .alignment = 2,
                        .capacity = 6,
                        .rank_of_expert = rank_of_expert_.data()};
};

TEST_F(ReferenceTest, Plan) {
  std::vector<int32_t> owner(4), row(4), offsets(3);
  PlanReference(group_, 0, experts_, owner.data(), row.data(), offsets.data());
  EXPECT_EQ(owner, (std::vector<int32_t>{1, 0, -1, 1}));
  EXPECT_EQ(row, (std::vector<int32_t>{2, 0, -1, 3}));
  EXPECT_EQ(offsets, (std::vector<int32_t>{0, 2, 0}));
  PlanReference(group_, 1, experts_, owner.data(), row.data(), offsets.data());
  EXPECT_EQ(owner[0], 1);
  EXPECT_EQ(row[0], 4);
  EXPECT_EQ(row[1], 0);
  EXPECT_EQ(offsets, (std::vector<int32_t>{0, 2, 6}));
}

TEST_F(ReferenceTest, DispatchAndCombine) {
  const std::vector<float> x[2] = {{1, 10}, {100}};
  const std::vector<float> weights[2] = {{0.5f, 0.25f, 9, 2}, {3, 4}};
  std::vector<float> rows[2] = {std::vector<float>(6, -7), std::vector<float>(6, -7)};
  std::vector<float> row_weights[2] = {std::vector<float>(6, -7), std::vector<float>(6, -7)};
  DispatchArgs dispatch[2];
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t tokens = experts_[rank].size(0);
    dispatch[rank] = {.plan = {},
                      .x = ConstTensorView(x[rank].data(), {tokens, 1}),
                      .weights = ConstTensorView(weights[rank].data(), {tokens, 2}),
                      .rows = TensorView(rows[rank].data(), {6, 1}),
                      .row_weights = TensorView(row_weights[rank].data(), {6})};
  }
  DispatchReference(group_, experts_, dispatch);
  EXPECT_EQ(rows[0], (std::vector<float>{1, 0, -7, -7, -7, -7}));
  EXPECT_EQ(rows[1], (std::vector<float>{100, 0, 1, 10, 100, 0}));
  EXPECT_EQ(row_weights[0], (std::vector<float>{0.25f, 0, -7, -7, -7, -7}));
  EXPECT_EQ(row_weights[1], (std::vector<float>{4, 0, 0.5f, 2, 3, 0}));

  std::vector<float> y[2] = {std::vector<float>(2), std::vector<float>(1)};
  std::vector<float> home[2] = {std::vector<float>(4), std::vector<float>(2)};
  CombineArgs combine[2];
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t tokens = experts_[rank].size(0);
    combine[rank] = {.plan = {},
                     .rows = dispatch[rank].rows,
                     .row_weights = dispatch[rank].row_weights,
                     .y = TensorView(y[rank].data(), {tokens, 1}),
                     .weights = TensorView(home[rank].data(), {tokens, 2})};
  }
  CombineReference(group_, experts_, combine);
  EXPECT_EQ(y[0], (std::vector<float>{2, 10}));
  EXPECT_EQ(y[1], (std::vector<float>{200}));
  EXPECT_EQ(home[0], (std::vector<float>{0.5f, 0.25f, 0, 2}));
  EXPECT_EQ(home[1], weights[1]);
}

}  // namespace
}  // namespace anabranch::expert_parallel
