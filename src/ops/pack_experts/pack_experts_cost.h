// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_COST_H_
#define ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_COST_H_

#include <cstdint>

namespace anabranch {

// Sizes of a call: E experts of H x F, bytes of one weight.
struct PackExpertsProblem {
  int64_t experts;
  int64_t hidden;
  int64_t width;
  int64_t weight_bytes;
};

// Nothing is computed. Bytes that must move at least once: three matrices in, and each weight out
// twice in bf16 (as a row and as a column). What pads H, F or a last panel is left out.
constexpr double PackExpertsBytes(const PackExpertsProblem& p) {
  return 3.0 * static_cast<double>(p.experts * p.hidden * p.width) *
         static_cast<double>(p.weight_bytes + 2 * 2);
}

}  // namespace anabranch

#endif  // ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_COST_H_
