// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/ragged_plan/rows.h"

#include <gtest/gtest.h>

#include <vector>

namespace anabranch {
namespace {

using Ids = std::vector<int32_t>;
using Floats = std::vector<float>;

// Two tokens, two slots: token 0 owns rows 2 and 0, token 1 owns row 1; row 3 is unused.
const Ids kRowToken = {0, 1, 0, -1};
const Ids kSlotRow = {2, 0, 1, -1};
const Ids kOffsets = {0, 1, 2, 3};

TEST(RowsReferenceTest, GathersAndZeroesTheTail) {
  const Floats x = {1, 2, 3, 4};
  Floats rows(8, 77);
  GatherRowsReference({ConstTensorView(x.data(), {2, 2}), ConstTensorView(kRowToken.data(), {4}),
                       TensorView(rows.data(), {4, 2})});
  EXPECT_EQ(rows, Floats({1, 2, 3, 4, 1, 2, 0, 0}));

  const Floats weights = {0.5, 0.25, 2, 99};
  Floats row_weights(4, 77);
  GatherWeightsReference({ConstTensorView(weights.data(), {2, 2}),
                          ConstTensorView(kSlotRow.data(), {2, 2}),
                          TensorView(row_weights.data(), {4})});
  EXPECT_EQ(row_weights, Floats({0.25, 2, 0.5, 0}));
}

TEST(RowsReferenceTest, CombinesInAscendingRowOrder) {
  // 1 is lost when it meets 2^24 first: rows 0 and 2 of token 0 are added as (0 + row 0) + row 2.
  const Floats rows = {1, 1, /**/ 5, 6, /**/ 16777216, 3, /**/ 99, 99};
  const Floats weights = {0.5, 2, 3, 99};
  Floats y(4, 77);
  const ConstTensorView row_view(rows.data(), {4, 2});
  const ConstTensorView slot_row(kSlotRow.data(), {2, 2});
  CombineRowsReference({row_view, slot_row, {}, TensorView(y.data(), {2, 2})});
  EXPECT_EQ(y, Floats({16777216, 4, 5, 6}));
  CombineRowsReference(
      {row_view, slot_row, ConstTensorView(weights.data(), {2, 2}), TensorView(y.data(), {2, 2})});
  EXPECT_EQ(y, Floats({8388610, 3.5, 15, 18}));
}

TEST(RowsReferenceTest, GradientIsTheTransposeAndTheDotProduct) {
  const Floats rows = {1, 2, /**/ 3, 4, /**/ 5, 6, /**/ 7, 8};
  const Floats weights = {0.5, 2, 3, 99};
  const Floats d_y = {1, 10, /**/ 100, 1000};
  Floats d_rows(8, 77);
  Floats d_weights(4, 77);
  CombineRowsGradReference(
      {ConstTensorView(rows.data(), {4, 2}), ConstTensorView(kSlotRow.data(), {2, 2}),
       ConstTensorView(kOffsets.data(), {4}), ConstTensorView(weights.data(), {2, 2}),
       ConstTensorView(d_y.data(), {2, 2}), TensorView(d_rows.data(), {4, 2}),
       TensorView(d_weights.data(), {2, 2})});
  EXPECT_EQ(d_rows, Floats({2, 20, /**/ 300, 3000, /**/ 0.5, 5, /**/ 0, 0}));
  EXPECT_EQ(d_weights, Floats({65, 21, 4300, 0}));
}

}  // namespace
}  // namespace anabranch
