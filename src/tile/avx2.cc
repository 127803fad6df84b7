// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// AVX2 and FMA. bf16 is widened by a shift (even k) and a mask (odd k) of its word.
#include <immintrin.h>

#include "tile/kernels.h"

namespace anabranch::tile::avx2 {
namespace {

constexpr int kLanes = 8;
// 6 rows x 2 vectors: 12 accumulators + 2 of B + 1 of A <= 16 registers.
constexpr int kBlockVectors = 2;

#include "tile/kernel_vector.inc"

inline VF Splat(float x) { return _mm256_set1_ps(x); }
inline VU SplatWord(uint32_t x) {
  return reinterpret_cast<VU>(_mm256_set1_epi32(static_cast<int>(x)));
}
inline VF Fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
inline VF SquareRoot(VF x) { return _mm256_sqrt_ps(x); }
constexpr bool kHasDotPair = false;
[[maybe_unused]] inline VF DotPair(VF acc, VU, VU) { return acc; }
template <typename T>
T RoundPair(VF first, VF second);  // not used without kHasDotPair
inline void StreamStore(float* to, VF x) { _mm256_stream_ps(to, x); }
inline void StreamHalf(uint16_t* to, VH x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(x));
}
inline VH NarrowToBf16(VF x) { return __builtin_convertvector(RoundToBf16Bits(x), VH); }
inline void StreamPair(uint16_t* to, VF low, VF high) {
  StreamHalf(to, NarrowToBf16(low));
  StreamHalf(to + kLanes, NarrowToBf16(high));
}

inline void Transpose(VU (&m)[kLanes]) {
  for (int stage = 0; stage < 3; ++stage) {
    VU t[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      t[2 * i] = __builtin_shufflevector(m[i], m[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      t[2 * i + 1] = __builtin_shufflevector(m[i], m[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < kLanes; ++i) m[i] = t[i];
  }
}

#include "tile/kernel_body.inc"

}  // namespace

const KernelTable kKernels = MakeKernels(Isa::kAvx2);

}  // namespace anabranch::tile::avx2
