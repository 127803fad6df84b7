// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "ops/quantize/hadamard.h"
#include "ops/quantize/kernels.h"

namespace anabranch::quantize::avx512 {
namespace {

constexpr int kLanes = 16;

#include "tile/kernel_vector.inc"

inline void StreamStore(float* to, VF x) { _mm512_stream_ps(to, x); }
inline void StreamHalf(uint16_t* to, VH x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(x));
}

#include "tile/plain_narrow.inc"

struct Wide {
  VU low, high;
};
inline Wide Multiply(VU a, uint32_t b) {
  const __m512i factor = _mm512_set1_epi32(static_cast<int>(b));
  const auto words = reinterpret_cast<__m512i>(a);
  const __m512i even = _mm512_maskz_mul_epu32(0xff, words, factor);
  const __m512i odd =
      _mm512_maskz_mul_epu32(0xff, _mm512_maskz_srli_epi64(0xff, words, 32), factor);
  return {reinterpret_cast<VU>(
              _mm512_mask_blend_epi32(0xaaaa, even, _mm512_maskz_slli_epi64(0xff, odd, 32))),
          reinterpret_cast<VU>(
              _mm512_mask_blend_epi32(0xaaaa, _mm512_maskz_srli_epi64(0xff, even, 32), odd))};
}
// Not _mm512_reduce_max_epu32, which GCC 12 takes for a use of an uninitialised value.
inline uint32_t LargestLane(VU x) {
  const auto larger = [](VU a, VU b) { return a > b ? a : b; };
  x = larger(x,
             __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  x = larger(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3));
  x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1));
  x = larger(x, __builtin_shufflevector(x, x, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0));
  return x[0];
}
inline void StoreFourBytes(uint8_t* to, const VU (&words)[4]) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  for (int i = 0; i < 4; ++i) {
    const Bytes bytes = __builtin_convertvector(words[i], Bytes);
    __builtin_memcpy(to + i * kLanes, &bytes, sizeof(bytes));
  }
}
inline VU TurnsLow(VU a, VU b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline VU TurnsHigh(VU a, VU b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
}

// The compiler would make a vector of every mask first.
inline VI CountIn(__mmask16 lanes, VI count) {
  return reinterpret_cast<VI>(_mm512_mask_add_epi32(reinterpret_cast<__m512i>(count), lanes,
                                                    reinterpret_cast<__m512i>(count),
                                                    _mm512_set1_epi32(-1)));
}
inline VI CountAbove(VI count, VF size, VF limit) {
  return CountIn(_mm512_cmp_ps_mask(size, limit, _CMP_GT_OQ), count);
}
inline VI CountFlushed(VI count, VF before, VF after) {
  const __m512 zero = {};
  const __mmask16 given = _mm512_cmp_ps_mask(before, zero, _CMP_NEQ_UQ);
  return CountIn(_mm512_mask_cmp_ps_mask(given, after, zero, _CMP_EQ_OQ), count);
}
inline VF AddSquare(VF sum, VF x) { return _mm512_fmadd_ps(x, x, sum); }

#include "ops/quantize/block_body.inc"

}  // namespace

const Kernels kKernels = MakeKernels();

}  // namespace anabranch::quantize::avx512
