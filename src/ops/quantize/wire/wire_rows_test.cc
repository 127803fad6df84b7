// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/wire/wire_rows.h"

#include <gtest/gtest.h>

#include <vector>

namespace anabranch {
namespace {

TEST(WireRowsReferenceTest, ASlotHoldsTheCodesAndThenTheScalesOfARow) {
  std::vector<float> x(33, 1.0f), back(33);
  x[32] = 3;
  // 1 = 256 * 2^-8 and 3 = 384 * 2^-7: the smallest powers of two that keep 448
  // or less.
  std::vector<uint8_t> expected(33, 0x78), slot(35);
  expected[32] = 0x7c;
  expected.insert(expected.end(), {127 - 8, 127 - 7});
  const TensorView slots(slot.data(), {1, 35});
  ASSERT_TRUE(
      EncodeRowsReference({ConstTensorView(x.data(), {1, 33}), slots}).ok());
  EXPECT_EQ(slot, expected);
  ASSERT_TRUE(
      DecodeRowsReference({slots, 1, TensorView(back.data(), {1, 33})}).ok());
  EXPECT_EQ(back, x);
}

} // namespace
} // namespace anabranch
