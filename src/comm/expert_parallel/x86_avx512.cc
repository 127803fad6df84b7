// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "comm/expert_parallel/sum_rows.h"

namespace anabranch::expert_parallel::avx512 {
namespace {

constexpr int kLanes = 16;

#include "tile/kernel_vector.inc"

inline void StreamStore(float* to, VF x) { _mm512_stream_ps(to, x); }
inline void StreamHalf(uint16_t* to, VH x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(x));
}

#include "comm/expert_parallel/sum_body.inc"

}  // namespace

const SumTable kSums = {Sum<Bf16>, Sum<F32>};

}  // namespace anabranch::expert_parallel::avx512
