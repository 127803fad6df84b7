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

// vcvtneps2bf16 rounds as RoundToBf16Bits does, but flushes subnormals: those are rare enough to be
// left to integers.
constexpr int kSubnormal = 0x20;
inline VH NarrowToBf16(VF x) {
  if (__builtin_expect(_mm512_fpclass_ps_mask(x, kSubnormal) != 0, 0)) {
    return __builtin_convertvector(RoundToBf16Bits(x), VH);
  }
  return reinterpret_cast<VH>(_mm512_cvtneps_pbh(x));
}
inline void StreamPair(uint16_t* to, VF low, VF high) {
  const __mmask16 subnormal =
      _mm512_fpclass_ps_mask(low, kSubnormal) | _mm512_fpclass_ps_mask(high, kSubnormal);
  if (__builtin_expect(subnormal != 0, 0)) {
    return StreamHalves(to, NarrowToBf16(low), NarrowToBf16(high));
  }
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                      reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}
constexpr bool kHasDotPair = true;
inline VF DotPair(VF acc, VU a, VU b) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

// Both vectors to bf16, as the product reads them (subnormals flushed): as rows, and as words of a
// pair. T is softmax_body.inc's KeyPair.
template <typename T>
inline T RoundPair(VF first, VF second) {
  typedef uint16_t Halves __attribute__((vector_size(64)));
  const auto both = reinterpret_cast<Halves>(_mm512_cvtne2ps_pbh(second, first));
  T pair;
  pair.words = reinterpret_cast<VU>(
      __builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8,
                              24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
  pair.first =
      __builtin_shufflevector(both, both, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  pair.second = __builtin_shufflevector(both, both, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
                                        28, 29, 30, 31);
  return pair;
}

#include "tile/kernel_body.inc"

}  // namespace

const KernelTable kKernels = MakeKernels(Isa::kAvx512Bf16);

}  // namespace anabranch::tile::avx512_bf16
