// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "base/small_float.h"
#include "tile/coded/kernels.h"

namespace anabranch::tile::avx2 {
namespace {

constexpr int kLanes = 8;

#include "tile/kernel_vector.inc"

inline void StreamStore(float* to, VF x) { _mm256_stream_ps(to, x); }
inline void StreamHalf(uint16_t* to, VH x) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), reinterpret_cast<__m128i>(x));
}

#include "tile/plain_narrow.inc"

inline VU TopCodes(const uint8_t* from) {
  constexpr VU kPlaces = {0x00808080, 0x01808080, 0x02808080, 0x03808080,
                          0x04808080, 0x05808080, 0x06808080, 0x07808080};
  int64_t codes;
  __builtin_memcpy(&codes, from, sizeof(codes));
  return reinterpret_cast<VU>(
      _mm256_shuffle_epi8(_mm256_set1_epi64x(codes), reinterpret_cast<__m256i>(kPlaces)));
}
inline bool AnyLane(VU x) {
  const auto bits = reinterpret_cast<__m256i>(x);
  return _mm256_testz_si256(bits, bits) == 0;
}

#include "tile/coded/coded_body.inc"

}  // namespace

const CodedKernels kCodedKernels = MakeCodedKernels();

}  // namespace anabranch::tile::avx2
