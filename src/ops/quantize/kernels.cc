// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/kernels.h"

#include "ops/quantize/layout.h"

namespace anabranch::quantize {

BlockPlan PlanBlocks(const QuantizeOptions& options) {
  const FormatFacts facts = FactsOf(options.format);
  const DType dtype = facts.element.dtype;
  const int element = dtype == DType::kE4M3 ? 0 : dtype == DType::kE5M2 ? 1 : 2;
  return {element,        facts.scale,        options.scale_mode,   options.stochastic,
          options.strict, BlockRows(options), BlockColumns(options)};
}

const Kernels& FindKernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return avx2::kKernels;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) return avx512::kKernels;
#endif
  static_cast<void>(isa);
  return generic::kKernels;
}

}  // namespace anabranch::quantize
