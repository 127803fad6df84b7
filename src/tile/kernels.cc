// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/kernels.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tile/tile.h"

namespace anabranch::tile {

const KernelTable* FindKernels(Isa isa) {
  if (!IsSupported(isa)) return nullptr;
  switch (isa) {
    case Isa::kGeneric:
      return &generic::kKernels;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return &avx2::kKernels;
    case Isa::kAvx512:
      return &avx512::kKernels;
    case Isa::kAvx512Bf16:
      return &avx512_bf16::kKernels;
#else
    default:
      return nullptr;
#endif
  }
  return nullptr;
}

namespace {

struct Selection {
  Selection() { kernels = FindKernels(SelectIsa(&error)); }
  std::string error;
  const KernelTable* kernels;
};

const Selection& Selected() {
  static const Selection selection;
  return selection;
}

}  // namespace

const KernelTable& Kernels() { return *Selected().kernels; }

std::string ForcedIsaError() { return Selected().error; }

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace anabranch::tile
