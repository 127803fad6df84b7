// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Slots and rows against the scalar oracle, bit for bit, on every instruction set.
#include "ops/quantize/wire/wire_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace anabranch {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Normal numbers of many sizes, and what is special.
template <typename T>
std::vector<T> Values(int64_t rows, int64_t columns) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 1);
  std::vector<T> values(rows * columns);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = FromFloat<T>(std::ldexp(normal(random), static_cast<int>(i / 40) % 41 - 20));
  }
  const float specials[] = {0, -0.0f, 0x1p-130f, kInfinity,
                            std::numeric_limits<float>::quiet_NaN()};
  for (size_t i = 0; i < std::size(specials) && 97 * i < values.size(); ++i) {
    values[97 * i] = FromFloat<T>(specials[i]);
  }
  return values;
}

template <typename T>
void CheckBothWays(int64_t rows, int64_t columns, int64_t count) {
  SCOPED_TRACE(std::to_string(rows) + "x" + std::to_string(columns));
  ThreadExecutor executor(3);
  const Context context = {&executor, nullptr, 0};
  const std::vector<T> x = Values<T>(rows, columns);
  const int64_t bytes = WireBytes(columns);
  std::vector<uint8_t> slots(rows * bytes, 0xee), expected(rows * bytes, 0xdd);
  const ConstTensorView view(x.data(), {rows, columns});
  ASSERT_TRUE(EncodeRows({view, TensorView(slots.data(), {rows, bytes})}, context).ok());
  ASSERT_TRUE(EncodeRowsReference({view, TensorView(expected.data(), {rows, bytes})}).ok());
  EXPECT_EQ(slots, expected);
  // A pattern that no element has: what is past `count` stays.
  std::vector<T> back(rows * columns, FromFloat<T>(0.1f)), want = back;
  const ConstTensorView coded(slots.data(), {rows, bytes});
  ASSERT_TRUE(DecodeRows({coded, count, TensorView(back.data(), {rows, columns})}, context).ok());
  ASSERT_TRUE(DecodeRowsReference({coded, count, TensorView(want.data(), {rows, columns})}).ok());
  for (size_t i = 0; i < back.size(); ++i) {
    const bool nan = std::isnan(ToFloat(back[i])) && std::isnan(ToFloat(want[i]));
    ASSERT_TRUE(nan || std::memcmp(&back[i], &want[i], sizeof(T)) == 0) << i;
  }
}

TEST(WireRowsReferenceTest, ASlotHoldsTheCodesAndThenTheScalesOfARow) {
  std::vector<float> x(33, 1.0f), back(33);
  x[32] = 3;
  // 1 = 256 * 2^-8 and 3 = 384 * 2^-7: the smallest powers of two that keep 448 or less.
  std::vector<uint8_t> expected(33, 0x78), slot(35);
  expected[32] = 0x7c;
  expected.insert(expected.end(), {127 - 8, 127 - 7});
  const TensorView slots(slot.data(), {1, 35});
  ASSERT_TRUE(EncodeRowsReference({ConstTensorView(x.data(), {1, 33}), slots}).ok());
  EXPECT_EQ(slot, expected);
  ASSERT_TRUE(DecodeRowsReference({slots, 1, TensorView(back.data(), {1, 33})}).ok());
  EXPECT_EQ(back, x);
}

TEST(WireRowsTest, BitsAreTheReferences) {
  for (int64_t columns : {1, 31, 32, 100, 545, 1024}) {
    CheckBothWays<float>(131, columns, 130);
    CheckBothWays<BF16>(131, columns, 1);
  }
  CheckBothWays<BF16>(0, 64, 0);
  CheckBothWays<BF16>(3, 0, 3);
}

TEST(WireRowsTest, ASlotOfZeroBytesIsARowOfPositiveZeros) {
  ThreadExecutor executor(1);
  const std::vector<uint8_t> slots(WireBytes(70));
  std::vector<float> row(70, -1);
  ASSERT_TRUE(DecodeRows({ConstTensorView(slots.data(), {1, WireBytes(70)}), 1,
                          TensorView(row.data(), {1, 70})},
                         {&executor, nullptr, 0})
                  .ok());
  for (float value : row) EXPECT_EQ(std::bit_cast<uint32_t>(value), 0u);
}

TEST(WireRowsTest, MisfitsAreNamed) {
  ThreadExecutor executor(1);
  const Context context = {&executor, nullptr, 0};
  std::vector<float> x(64);
  std::vector<uint8_t> slots(66);
  const Status short_slots =
      EncodeRows({ConstTensorView(x.data(), {1, 64}), TensorView(slots.data(), {1, 65})}, context);
  EXPECT_EQ(short_slots.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(short_slots.message().find("f32[1,64]"), std::string::npos) << short_slots.message();
  const Status too_many = DecodeRows(
      {ConstTensorView(slots.data(), {1, 66}), 2, TensorView(x.data(), {1, 64})}, context);
  EXPECT_EQ(too_many.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(too_many.message().find("count=2 of 1"), std::string::npos) << too_many.message();
}

}  // namespace
}  // namespace anabranch
