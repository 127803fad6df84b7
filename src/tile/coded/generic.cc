// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Portable: no instruction beyond the compiler's baseline.
#include "base/small_float.h"
#include "tile/coded/kernels.h"

namespace anabranch::tile::generic {
namespace {

constexpr int kLanes = 4;

#include "tile/kernel_vector.inc"

// clang-format off
inline void StreamStore(float* to, VF x) { StoreFloats(to, x); }
inline void StreamHalf(uint16_t* to, VH x) { *reinterpret_cast<VHMemory*>(to) = x; }
// clang-format on

#include "tile/plain_narrow.inc"

inline VU TopCodes(const uint8_t* from) { return VU{from[0], from[1], from[2], from[3]} << 24; }
inline bool AnyLane(VU x) { return (x[0] | x[1] | x[2] | x[3]) != 0; }

#include "tile/coded/coded_body.inc"

}  // namespace

const CodedKernels kCodedKernels = MakeCodedKernels();

}  // namespace anabranch::tile::generic
