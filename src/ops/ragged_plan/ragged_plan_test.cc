// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/ragged_plan/ragged_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace anabranch {
namespace {

// The arrays of one plan.
struct Plan {
  Plan(int64_t tokens, int64_t topk, int64_t num_experts, int64_t num_rows)
      : tokens(tokens),
        topk(topk),
        sizes(num_experts, 77),
        offsets(num_experts + 1, 77),
        row_token(num_rows, 77),
        slot_row(tokens * topk, 77) {}

  RaggedPlanArgs Args(const std::vector<int32_t>& experts) {
    return {ConstTensorView(experts.data(), {tokens, topk}),
            TensorView(sizes.data(), {static_cast<int64_t>(sizes.size())}),
            TensorView(offsets.data(), {static_cast<int64_t>(offsets.size())}),
            TensorView(row_token.data(), {static_cast<int64_t>(row_token.size())}),
            TensorView(slot_row.data(), {tokens, topk})};
  }

  int64_t tokens;
  int64_t topk;
  std::vector<int32_t> sizes;
  std::vector<int32_t> offsets;
  std::vector<int32_t> row_token;
  std::vector<int32_t> slot_row;
};

using Ids = std::vector<int32_t>;

TEST(RaggedPlanReferenceTest, OrdersByExpertThenToken) {
  const Ids experts = {2, 0, /**/ 0, -1, /**/ 2, 2, /**/ -1, -1};
  Plan plan(4, 2, 4, 7);
  RaggedPlanReference(plan.Args(experts));
  EXPECT_EQ(plan.sizes, Ids({2, 0, 3, 0}));
  EXPECT_EQ(plan.offsets, Ids({0, 2, 2, 5, 5}));
  EXPECT_EQ(plan.row_token, Ids({0, 1, 0, 2, 2, -1, -1}));
  EXPECT_EQ(plan.slot_row, Ids({2, 0, 1, -1, 3, 4, -1, -1}));
}

}  // namespace
}  // namespace anabranch
