// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_FORMAT_H_
#define ANABRANCH_OPS_QUANTIZE_FORMAT_H_

#include <cstdint>

#include "base/small_float.h"

// The formats of ops/quantize: what an element, a block and a scale is.
namespace anabranch {

enum class QuantizedFormat {
  kMxfp8E4m3,        // 1x32, E8M0 scale (OCP MX 1.0)
  kMxfp8E5m2,        // 1x32, E8M0
  kMxfp4,            // E2M1, 1x32, E8M0
  kNvfp4,            // E2M1, 1x16, E4M3 scale, one f32 scale per tensor (arXiv 2509.25149)
  kNvfp4Square,      // the same with 16x16 blocks, for weights
  kFp8Block1x128,    // E4M3, 1x128, f32 scale (arXiv 2412.19437)
  kFp8Block128x128,  // E4M3, 128x128, f32 scale
};
inline constexpr int kNumQuantizedFormats = 7;

// How the power of two of a block follows from amax, the largest size in it.
enum class ScaleMode {
  kRceil,    // the smallest one that is at least amax / max: nothing saturates
  kFloor,    // floor(log2 amax) - emax (OCP MX 1.0): amax may saturate
  kEven,     // kFloor of amax rounded to the element's mantissa
  kCeil,     // ceil(log2 amax) - emax
  kFloat32,  // fp8_block alone: no power of two, but 1 / (max / amax)
};
inline constexpr int kNumScaleModes = 5;

enum class ScaleKind { kE8m0, kE4m3, kF32 };

struct FormatFacts {
  ElementType element;
  ScaleKind scale;
  int64_t block;  // elements along the axis
  bool square;    // block x block elements, whatever the axis
};
constexpr FormatFacts FactsOf(QuantizedFormat format) {
  constexpr FormatFacts kFacts[kNumQuantizedFormats] = {
      {kE4m3, ScaleKind::kE8m0, 32, false}, {kE5m2, ScaleKind::kE8m0, 32, false},
      {kE2m1, ScaleKind::kE8m0, 32, false}, {kE2m1, ScaleKind::kE4m3, 16, false},
      {kE2m1, ScaleKind::kE4m3, 16, true},  {kE4m3, ScaleKind::kF32, 128, false},
      {kE4m3, ScaleKind::kF32, 128, true}};
  return kFacts[static_cast<int>(format)];
}

// NVFP4's numbers: the tensor scale maps amax to 6 * 448, the largest element times the largest
// block scale.
inline constexpr float kNvfp4Range = 6.0f * 448.0f;

}  // namespace anabranch

#endif  // ANABRANCH_OPS_QUANTIZE_FORMAT_H_
