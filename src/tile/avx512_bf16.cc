// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// AVX-512 with vdpbf16ps (Zen 4, Cooper Lake, Sapphire Rapids): both halves of a bf16 word in one
// instruction, twice the f32 rate. The instruction flushes subnormal inputs and results to zero
// and rounds to nearest even whatever MXCSR says.
#include <immintrin.h>

#include "tile/kernels.h"

namespace anabranch::tile::avx512_bf16 {
namespace {

constexpr int kLanes = 16;
constexpr int kBlockVectors = 4;  // 6 x 64: 24 accumulators, see tile.h

// The second uses the types of the first.
// clang-format off
#include "tile/kernel_vector.inc"
#include "tile/avx512_vector.inc"
// clang-format on

constexpr bool kHasDotPair = true;
inline VF DotPair(VF acc, VU a, VU b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

#include "tile/kernel_body.inc"

}  // namespace

const KernelTable kKernels = MakeKernels(Isa::kAvx512Bf16);

}  // namespace anabranch::tile::avx512_bf16
