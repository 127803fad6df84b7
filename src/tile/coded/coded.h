// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_CODED_CODED_H_
#define ANABRANCH_TILE_CODED_CODED_H_

#include <cstdint>

#include "base/cpu_features.h"
#include "base/dtype.h"
#include "tile/tile.h"

// Operands in block-scaled low precision, turned into bf16 while they are rearranged for the
// microkernel: no copy of their values exists outside of a panel.
//   Value     element * scale of its block, in f32, rounded once to bf16 (to nearest even). Exact
//             for E4M3, E5M2 and E2M1 under powers of two from 2^-100 on and under E4M3 scales.
//   NaN       an element code above the largest number, or a NaN scale, gives NaN.
//   Threads   no state; callers switch flush-to-zero off (base/float_mode.h), because small element
//             codes are read as subnormal numbers.
namespace anabranch::tile {

enum class CodedElement { kE4m3, kE5m2, kE2m1 };
enum class CodedScale { kE8m0, kE4m3, kF32 };

// Rows of codes, one a byte. Blocks start at row 0 and column 0.
struct CodedMatrix {
  const uint8_t* codes = nullptr;
  int64_t pitch = 0;  // bytes
  CodedElement element = CodedElement::kE4m3;
  CodedScale scale_type = CodedScale::kE8m0;
  const void* scale = nullptr;
  int64_t scale_pitch = 0;  // elements: scales of one row of blocks
  int64_t block_rows = 1;
  int64_t block_columns = 32;
};

// Rows first_row ... first_row + rows - 1 and as many columns from first_column on.
struct CodedPart {
  int64_t first_row, rows, first_column, columns;
};

// out[r * out_pitch + c] = the value of element (r, c) of the part.
void DecodeCodes(Isa isa, const CodedMatrix& matrix, const CodedPart& part, BF16* out,
                 int64_t out_pitch);

// What Packer's functions for bf16 (tile.h) do with the values of a part:
//   rows        a panel of its columns (at most 64), contracted over its rows
//   transposed  a panel of its rows (at most 64), contracted over its columns
//   transpose   its columns as rows of words along its rows
void PackCodedRows(Isa isa, const CodedMatrix& matrix, const CodedPart& part, uint32_t* panel);
void PackCodedTransposed(const KernelTable& kernels, const CodedMatrix& matrix,
                         const CodedPart& part, uint32_t* panel);
void TransposeCodedRows(const KernelTable& kernels, const CodedMatrix& matrix,
                        const CodedPart& part, uint32_t* out, int64_t out_pitch);

// The oracles: one element after the other.
void DecodeCodesReference(const CodedMatrix& matrix, const CodedPart& part, BF16* out,
                          int64_t out_pitch);
void PackCodedRowsReference(const CodedMatrix& matrix, const CodedPart& part, uint32_t* panel);

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_CODED_CODED_H_
