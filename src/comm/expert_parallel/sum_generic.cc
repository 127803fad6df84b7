// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/sum_rows.h"

namespace anabranch::expert_parallel::generic {
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

}  // namespace anabranch::expert_parallel::generic
