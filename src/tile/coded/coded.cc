// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/coded/coded.h"

#include <algorithm>

#include "tile/coded/kernels.h"

namespace anabranch::tile {
namespace {

const CodedKernels& FindCodedKernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return avx2::kCodedKernels;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) return avx512::kCodedKernels;
#endif
  static_cast<void>(isa);
  return generic::kCodedKernels;
}

// Values of a strip of 64 rows and 128 columns live in the first cache level (16 KiB) between
// decoding and rearranging.
constexpr int64_t kStripRows = 64;
constexpr int64_t kStripColumns = 128;

struct Strip {
  alignas(64) BF16 values[kStripRows * kStripColumns];
  const void* rows[kStripRows];

  Strip() {
    for (int64_t r = 0; r < kStripRows; ++r) rows[r] = values + r * kStripColumns;
  }
};

}  // namespace

void DecodeCodes(Isa isa, const CodedMatrix& matrix, const CodedPart& part, BF16* out,
                 int64_t out_pitch) {
  FindCodedKernels(isa).decode[static_cast<int>(matrix.element)]
                              [static_cast<int>(matrix.scale_type)](matrix, part, out, out_pitch);
}

void PackCodedRows(Isa isa, const CodedMatrix& matrix, const CodedPart& part, uint32_t* panel) {
  FindCodedKernels(isa).pack_rows[static_cast<int>(matrix.element)]
                                 [static_cast<int>(matrix.scale_type)](matrix, part, panel);
}

void PackCodedTransposed(const KernelTable& kernels, const CodedMatrix& matrix,
                         const CodedPart& part, uint32_t* panel) {
  const int64_t width = matrix.block_columns;
  if (width >= 16 && kStripColumns % width == 0 && part.first_column % kStripColumns == 0) {
    return FindCodedKernels(kernels.isa)
        .pack_transposed[static_cast<int>(matrix.element)][static_cast<int>(matrix.scale_type)](
            matrix, part, panel);
  }
  Strip strip;
  for (int64_t k = 0; k < part.columns; k += kStripColumns) {
    const int64_t count = std::min(kStripColumns, part.columns - k);
    DecodeCodes(kernels.isa, matrix, {part.first_row, part.rows, part.first_column + k, count},
                strip.values, kStripColumns);
    kernels.pack_bf16_bf16.transposed(strip.rows, static_cast<int>(part.rows), 0, count,
                                      panel + k / 2 * kPanelColumns);
  }
}

void TransposeCodedRows(const KernelTable& kernels, const CodedMatrix& matrix,
                        const CodedPart& part, uint32_t* out, int64_t out_pitch) {
  Strip strip;
  for (int64_t k = 0; k < part.rows; k += kStripRows) {
    const int64_t rows = std::min(kStripRows, part.rows - k);
    for (int64_t c = 0; c < part.columns; c += kStripColumns) {
      const int64_t columns = std::min(kStripColumns, part.columns - c);
      DecodeCodes(kernels.isa, matrix, {part.first_row + k, rows, part.first_column + c, columns},
                  strip.values, kStripColumns);
      kernels.pack_bf16_bf16.transpose(strip.rows, rows, 0, columns, out + c * out_pitch + k / 2,
                                       out_pitch);
    }
  }
}

}  // namespace anabranch::tile
