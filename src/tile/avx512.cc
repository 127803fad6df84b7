// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// AVX-512 F, BW, VL, DQ: every server core since 2017 that has no bf16 instructions. bf16 is
// widened by a shift (even k) and a mask (odd k) of its word.
#include <immintrin.h>

#include "tile/kernels.h"

namespace anabranch::tile::avx512 {
namespace {

constexpr int kLanes = 16;
constexpr int kBlockVectors = 4;  // 6 x 64: 24 accumulators, see tile.h

// The second uses the types of the first.
// clang-format off
#include "tile/kernel_vector.inc"
#include "tile/avx512_vector.inc"
// clang-format on

inline VH NarrowToBf16(VF x) { return __builtin_convertvector(RoundToBf16Bits(x), VH); }
inline void StreamPair(uint16_t* to, VF low, VF high) {
  StreamHalves(to, NarrowToBf16(low), NarrowToBf16(high));
}
constexpr bool kHasDotPair = false;
[[maybe_unused]] inline VF DotPair(VF acc, VU, VU) { return acc; }
template <typename T>
T RoundPair(VF first, VF second);  // not used without kHasDotPair

#include "tile/kernel_body.inc"

}  // namespace

const KernelTable kKernels = MakeKernels(Isa::kAvx512);

}  // namespace anabranch::tile::avx512
