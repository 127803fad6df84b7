// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/pack_codes/pack_codes.h"

#include <gtest/gtest.h>

#include <vector>

namespace anabranch {
namespace {

TEST(PackCodes, TwoOfEveryValueMakeAByteAndComeBack) {
  ThreadExecutor executor(3);
  const Context context = {&executor, nullptr, 0};
  for (int64_t count : {0, 1, 2, 3, 31, 256, 1025, 200001}) {
    SCOPED_TRACE(count);
    std::vector<uint8_t> codes(count), packed((count + 1) / 2, 0xff), back(count, 0xff);
    for (int64_t i = 0; i < count; ++i) codes[i] = (i * 7 + i / 16) % 16;
    const TensorView view(packed.data(), DType::kU8, {(count + 1) / 2});
    const ConstTensorView in(codes.data(), DType::kU8, {1, count});
    ASSERT_TRUE(PackCodes({in, view}, context).ok());
    for (int64_t i = 0; i < (count + 1) / 2; ++i) {
      const int high = 2 * i + 1 < count ? codes[2 * i + 1] : 0;
      ASSERT_EQ(packed[i], high * 16 + codes[2 * i]) << i;
    }
    ASSERT_TRUE(UnpackCodes({view, {back.data(), DType::kU8, {count}}}, context).ok());
    EXPECT_EQ(back, codes);
  }
}

TEST(PackCodes, TypesAndSizesMustFit) {
  SerialExecutor executor;
  const Context context = {&executor, nullptr, 0};
  std::vector<uint8_t> codes(5), packed(3, 7);
  const TensorView five(codes.data(), DType::kU8, {5}), three(packed.data(), DType::kU8, {3});
  const TensorView two(packed.data(), DType::kU8, {2});
  EXPECT_EQ(
      PackCodes({five, two}, context).message(),
      "pack_codes: codes u8[5] and packed u8[2]; must be u8 with n elements and u8 [ceil(n / 2)]");
  EXPECT_FALSE(PackCodes({{codes.data(), DType::kE4M3, {5}}, three}, context).ok());
  EXPECT_FALSE(PackCodes({{}, three}, context).ok());
  EXPECT_FALSE(UnpackCodes({two, five}, context).ok());
  EXPECT_EQ(packed, std::vector<uint8_t>(3, 7));
}

}  // namespace
}  // namespace anabranch
