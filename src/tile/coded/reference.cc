// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/small_float.h"
#include "tile/coded/coded.h"

namespace anabranch::tile {
namespace {

float ScaleAt(const CodedMatrix& matrix, int64_t row, int64_t column) {
  const int64_t at = row / matrix.block_rows * matrix.scale_pitch + column / matrix.block_columns;
  if (matrix.scale_type == CodedScale::kF32) return static_cast<const float*>(matrix.scale)[at];
  const uint8_t code = static_cast<const uint8_t*>(matrix.scale)[at];
  return matrix.scale_type == CodedScale::kE8m0 ? E8m0Value(code) : ElementValue(kE4m3, code);
}

BF16 ValueAt(const CodedMatrix& matrix, int64_t row, int64_t column) {
  constexpr ElementType kElements[] = {kE4m3, kE5m2, kE2m1};
  const uint8_t code = matrix.codes[row * matrix.pitch + column];
  const float element = ElementValue(kElements[static_cast<int>(matrix.element)], code);
  return ToBF16(element * ScaleAt(matrix, row, column));
}

}  // namespace

void DecodeCodesReference(const CodedMatrix& matrix, const CodedPart& part, BF16* out,
                          int64_t out_pitch) {
  for (int64_t r = 0; r < part.rows; ++r) {
    for (int64_t c = 0; c < part.columns; ++c) {
      out[r * out_pitch + c] = ValueAt(matrix, part.first_row + r, part.first_column + c);
    }
  }
}

void PackCodedRowsReference(const CodedMatrix& matrix, const CodedPart& part, uint32_t* panel) {
  std::fill_n(panel, WordsOf(DType::kBF16, part.rows) * kPanelColumns, 0u);
  for (int64_t r = 0; r < part.rows; ++r) {
    for (int64_t c = 0; c < part.columns; ++c) {
      const BF16 value = ValueAt(matrix, part.first_row + r, part.first_column + c);
      panel[r / 2 * kPanelColumns + c] |= static_cast<uint32_t>(value.bits) << (r % 2 * 16);
    }
  }
}

}  // namespace anabranch::tile
