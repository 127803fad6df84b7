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
inline VH NarrowToBf16(VF x) { return __builtin_convertvector(RoundToBf16Bits(x), VH); }
[[maybe_unused]] inline void StreamPair(uint16_t* to, VF low, VF high) {
  StreamHalf(to, NarrowToBf16(low));
  StreamHalf(to + kLanes, NarrowToBf16(high));
}
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

#include "ops/quantize/block_body.inc"

}  // namespace

const Kernels kKernels = MakeKernels();

}  // namespace anabranch::quantize::avx2
