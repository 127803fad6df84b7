// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_CODED_KERNELS_H_
#define ANABRANCH_TILE_CODED_KERNELS_H_

#include "tile/coded/coded.h"

// One table per instruction set, in the file of its name. All give the same bits.
namespace anabranch::tile {

struct CodedKernels {
  // By element and scale type.
  void (*decode[3][3])(const CodedMatrix& matrix, const CodedPart& part, BF16* out,
                       int64_t out_pitch);
  void (*pack_rows[3][3])(const CodedMatrix& matrix, const CodedPart& part, uint32_t* panel);
  // Blocks along columns must divide 128 and be 16 at least, and the part start where 128 do.
  void (*pack_transposed[3][3])(const CodedMatrix& matrix, const CodedPart& part, uint32_t* panel);
};

namespace generic {
extern const CodedKernels kCodedKernels;
}
namespace avx2 {
extern const CodedKernels kCodedKernels;
}
namespace avx512 {
extern const CodedKernels kCodedKernels;
}

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_CODED_KERNELS_H_
