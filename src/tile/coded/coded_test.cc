// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/coded/coded.h"

#include <gtest/gtest.h>

#include <vector>

namespace anabranch::tile {
namespace {

TEST(CodedTest, ReferencePacksWhatItDecodes) {
  const uint8_t codes[] = {0x38, 0xb8, 0x01, 0x7e};  // 1, -1, 2^-9, 448 in E4M3
  const uint8_t scales[] = {128, 126};               // 2, 1/2
  const CodedMatrix matrix = {codes, 2, CodedElement::kE4m3, CodedScale::kE8m0, scales, 1, 1, 32};
  BF16 values[4];
  DecodeCodesReference(matrix, {0, 2, 0, 2}, values, 2);
  EXPECT_EQ(ToFloat(values[0]), 2);
  EXPECT_EQ(ToFloat(values[1]), -2);
  EXPECT_EQ(ToFloat(values[2]), 0x1p-10f);
  EXPECT_EQ(ToFloat(values[3]), 224);
  std::vector<uint32_t> panel(kPanelColumns, 1);
  PackCodedRowsReference(matrix, {0, 2, 0, 2}, panel.data());
  EXPECT_EQ(panel[0], values[0].bits | static_cast<uint32_t>(values[2].bits) << 16);
  EXPECT_EQ(panel[1], values[1].bits | static_cast<uint32_t>(values[3].bits) << 16);
  EXPECT_EQ(panel[2], 0u);
}

}  // namespace
}  // namespace anabranch::tile
