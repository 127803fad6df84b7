// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/sum_rows.h"

namespace anabranch::expert_parallel {

SumTable FindSums(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return avx2::kSums;
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Bf16) return avx512::kSums;
#endif
  static_cast<void>(isa);
  return generic::kSums;
}

}  // namespace anabranch::expert_parallel
