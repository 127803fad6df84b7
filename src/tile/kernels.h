// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_KERNELS_H_
#define ANABRANCH_TILE_KERNELS_H_

#include "tile/tile.h"

// The registry: one table per instruction set, defined in the file of the same name. A new
// instruction set adds a file, a line here, a case in FindKernels and an entry in Isa; tests and
// benchmarks walk Isa and pick it up.
namespace anabranch::tile {

namespace generic {
extern const KernelTable kKernels;
}
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}
namespace avx512_bf16 {
extern const KernelTable kKernels;
}

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_KERNELS_H_
