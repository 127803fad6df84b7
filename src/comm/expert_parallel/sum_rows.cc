// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The portable sum, and which of the tables to take.
#include "comm/expert_parallel/sum_rows.h"

namespace anabranch::expert_parallel {
namespace generic {
namespace {

constexpr int kLanes = 4;

#include "tile/kernel_vector.inc"

// clang-format off
inline void StreamStore(float* to, VF x) { StoreFloats(to, x); }
inline void StreamHalf(uint16_t* to, VH x) { *reinterpret_cast<VHMemory*>(to) = x; }
// clang-format on

#include "comm/expert_parallel/sum_body.inc"

}  // namespace

const SumTable kSums = {Sum<Bf16>, Sum<F32>};

}  // namespace generic

SumTable FindSums(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return avx2::kSums;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) return avx512::kSums;
#endif
  static_cast<void>(isa);
  return generic::kSums;
}

}  // namespace anabranch::expert_parallel
