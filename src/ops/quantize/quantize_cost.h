// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_QUANTIZE_COST_H_
#define ANABRANCH_OPS_QUANTIZE_QUANTIZE_COST_H_

#include <cstdint>

#include "ops/quantize/format.h"

namespace anabranch {

// Bytes of `elements` quantised ones with their scales; E2M1 packed two to a byte, as it travels.
constexpr double QuantizedBytes(QuantizedFormat format, int64_t elements) {
  const FormatFacts facts = FactsOf(format);
  const double element = facts.element.dtype == DType::kE2M1 ? 0.5 : 1.0;
  const double scale = facts.scale == ScaleKind::kF32 ? 4.0 : 1.0;
  const auto block = static_cast<double>(facts.square ? facts.block * facts.block : facts.block);
  return static_cast<double>(elements) * (element + scale / block);
}
// Bytes that quantisation on this engine moves: the source once (twice for a tensor amax), codes
// of one byte, scales.
constexpr double QuantizeBytes(QuantizedFormat format, int64_t elements, int64_t source_bytes) {
  const FormatFacts facts = FactsOf(format);
  const double reads = facts.scale == ScaleKind::kE4m3 ? 2.0 : 1.0;
  const double scale = facts.scale == ScaleKind::kF32 ? 4.0 : 1.0;
  const auto block = static_cast<double>(facts.square ? facts.block * facts.block : facts.block);
  return static_cast<double>(elements) *
         (reads * static_cast<double>(source_bytes) + 1.0 + scale / block);
}

}  // namespace anabranch

#endif  // ANABRANCH_OPS_QUANTIZE_QUANTIZE_COST_H_
