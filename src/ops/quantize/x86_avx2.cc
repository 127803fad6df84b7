// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "ops/quantize/hadamard.h"
#include "ops/quantize/kernels.h"

namespace anabranch::quantize::avx2 {
namespace {

constexpr int kLanes = 8;

#include "tile/kernel_vector.inc"

inline void StreamStore(float* to, VF x) { _mm256_stream_ps(to, x); }
inline void StreamHalf(uint16_t* to, VH x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(x));
}

#include "tile/plain_narrow.inc"

struct Wide {
  VU low, high;
};
inline Wide Multiply(VU a, uint32_t b) {
  const __m256i factor = _mm256_set1_epi32(static_cast<int>(b));
  const auto words = reinterpret_cast<__m256i>(a);
  const __m256i even = _mm256_mul_epu32(words, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(words, 32), factor);
  return {reinterpret_cast<VU>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)),
          reinterpret_cast<VU>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa))};
}
inline uint32_t LargestLane(VU x) {
  const auto words = reinterpret_cast<__m256i>(x);
  __m128i most = _mm_max_epu32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(most));
}
// Not __builtin_convertvector, which GCC 12 takes apart lane by lane.
inline void StoreFourBytes(uint8_t* to, const VU (&words)[4]) {
  const auto at = [&](int i) { return reinterpret_cast<__m256i>(words[i]); };
  const __m256i low = _mm256_packus_epi32(at(0), at(1)), high = _mm256_packus_epi32(at(2), at(3));
  // Packing works within halves of 128 bits: fours of bytes come out in the order 0 2 4 6 1 3 5 7.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
}
inline VU TurnsLow(VU a, VU b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline VU TurnsHigh(VU a, VU b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

inline VI CountAbove(VI count, VF size, VF limit) { return count + (size > limit); }
inline VI CountFlushed(VI count, VF before, VF after) {
  return count + ((before != 0.0f) & (after == 0.0f));
}
inline VF AddSquare(VF sum, VF x) { return sum + x * x; }

#include "ops/quantize/block_body.inc"

}  // namespace

const Kernels kKernels = MakeKernels();

}  // namespace anabranch::quantize::avx2
