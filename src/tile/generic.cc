// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Portable kernels: no instruction beyond the compiler's baseline (SSE2 on x86-64). Also what the
// other tables are compared with.
#include "tile/kernels.h"

namespace anabranch::tile::generic {
namespace {

constexpr int kLanes = 4;
// 6 rows x 2 vectors: 12 accumulators + 2 of B + 1 of A <= 16 registers.
constexpr int kBlockVectors = 2;

#include "tile/kernel_vector.inc"

inline VF Splat(float x) { return VF{x, x, x, x}; }
inline VU SplatWord(uint32_t x) { return VU{x, x, x, x}; }
inline VF Fma(VF a, VF b, VF c) { return a * b + c; }  // two roundings
inline VF SquareRoot(VF x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
constexpr bool kHasDotPair = false;
[[maybe_unused]] inline VF DotPair(VF acc, VU, VU) { return acc; }
template <typename T>
T RoundPair(VF first, VF second);  // not used without kHasDotPair
inline void StreamStore(float* to, VF x) { StoreFloats(to, x); }
inline void StreamHalf(uint16_t* to, VH x) { *reinterpret_cast<VHMemory*>(to) = x; }
inline VH NarrowToBf16(VF x) { return __builtin_convertvector(RoundToBf16Bits(x), VH); }
inline void StreamPair(uint16_t* to, VF low, VF high) {
  StreamHalf(to, NarrowToBf16(low));
  StreamHalf(to + kLanes, NarrowToBf16(high));
}

inline void Transpose(VU (&m)[kLanes]) {
  for (int stage = 0; stage < 2; ++stage) {
    VU t[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      t[2 * i] = __builtin_shufflevector(m[i], m[i + 2], 0, 4, 1, 5);
      t[2 * i + 1] = __builtin_shufflevector(m[i], m[i + 2], 2, 6, 3, 7);
    }
    for (int i = 0; i < kLanes; ++i) m[i] = t[i];
  }
}

#include "tile/kernel_body.inc"

}  // namespace

const KernelTable kKernels = MakeKernels(Isa::kGeneric);

}  // namespace anabranch::tile::generic
