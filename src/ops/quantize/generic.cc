// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Portable tiles: no instruction beyond the compiler's baseline.
#include "ops/quantize/hadamard.h"
#include "ops/quantize/kernels.h"

namespace anabranch::quantize::generic {
namespace {

constexpr int kLanes = 4;

#include "tile/kernel_vector.inc"

// clang-format off
inline void StreamStore(float* to, VF x) { StoreFloats(to, x); }
inline void StreamHalf(uint16_t* to, VH x) { *reinterpret_cast<VHMemory*>(to) = x; }
// clang-format on

#include "tile/plain_narrow.inc"

struct Wide {
  VU low, high;
};
inline Wide Multiply(VU a, uint32_t b) {
  Wide out;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t product = static_cast<uint64_t>(a[lane]) * b;
    out.low[lane] = static_cast<uint32_t>(product);
    out.high[lane] = static_cast<uint32_t>(product >> 32);
  }
  return out;
}
inline uint32_t LargestLane(VU x) {
  uint32_t most = x[0];
  for (int lane = 1; lane < kLanes; ++lane) most = x[lane] > most ? x[lane] : most;
  return most;
}
inline void StoreFourBytes(uint8_t* to, const VU (&words)[4]) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  for (int i = 0; i < 4; ++i) {
    const Bytes bytes = __builtin_convertvector(words[i], Bytes);
    __builtin_memcpy(to + i * kLanes, &bytes, sizeof(bytes));
  }
}
inline VU TurnsLow(VU a, VU b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline VU TurnsHigh(VU a, VU b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }

inline VI CountAbove(VI count, VF size, VF limit) { return count + (size > limit); }
inline VI CountFlushed(VI count, VF before, VF after) {
  return count + ((before != 0.0f) & (after == 0.0f));
}
inline VF AddSquare(VF sum, VF x) { return sum + x * x; }

#include "ops/quantize/block_body.inc"

}  // namespace

const Kernels kKernels = MakeKernels();

}  // namespace anabranch::quantize::generic
