// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "base/small_float.h"
#include "tile/coded/kernels.h"

namespace anabranch::tile::avx512 {
namespace {

constexpr int kLanes = 16;

#include "tile/kernel_vector.inc"

inline void StreamStore(float* to, VF x) { _mm512_stream_ps(to, x); }
inline void StreamHalf(uint16_t* to, VH x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(x));
}

#include "tile/plain_narrow.inc"

inline VU TopCodes(const uint8_t* from) {
  constexpr VU kPlaces = {0x00808080, 0x01808080, 0x02808080, 0x03808080, 0x04808080, 0x05808080,
                          0x06808080, 0x07808080, 0x08808080, 0x09808080, 0x0a808080, 0x0b808080,
                          0x0c808080, 0x0d808080, 0x0e808080, 0x0f808080};
  const __m512i codes =
      _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return reinterpret_cast<VU>(
      _mm512_maskz_shuffle_epi8(~__mmask64{0}, codes, reinterpret_cast<__m512i>(kPlaces)));
}
inline bool AnyLane(VU x) {
  const auto bits = reinterpret_cast<__m512i>(x);
  return _mm512_test_epi32_mask(bits, bits) != 0;
}

#include "tile/coded/coded_body.inc"

}  // namespace

const CodedKernels kCodedKernels = MakeCodedKernels();

}  // namespace anabranch::tile::avx512
