// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_MOE_FFN_MOE_FFN_COST_H_
#define ANABRANCH_OPS_MOE_FFN_MOE_FFN_COST_H_

#include <cstdint>

namespace anabranch {

// Sizes of a call: T tokens, R routed rows, H hidden, F expert width, E experts, bytes an element
// of rows and of expert weights.
struct MoeFfnProblem {
  int64_t tokens;
  int64_t rows;
  int64_t hidden;
  int64_t expert_width;
  int64_t experts;
  int64_t row_bytes;
  int64_t weight_bytes;
};

// Multiply-adds counted as two: gate, up and down, each R x H x F.
constexpr double MoeFfnFlops(const MoeFfnProblem& p) {
  return 6.0 * static_cast<double>(p.rows) * static_cast<double>(p.hidden) *
         static_cast<double>(p.expert_width);
}
// Input and weight gradients of the three products.
constexpr double MoeFfnGradFlops(const MoeFfnProblem& p) { return 2 * MoeFfnFlops(p); }

// Bytes that must move at least once: weights, x and y, saved gate and up, hidden out and in.
constexpr double MoeFfnBytes(const MoeFfnProblem& p) {
  const double weights = 3.0 * static_cast<double>(p.experts * p.hidden * p.expert_width);
  const double rows = static_cast<double>(2 * p.tokens * p.hidden + 4 * p.rows * p.expert_width);
  return weights * static_cast<double>(p.weight_bytes) + rows * static_cast<double>(p.row_bytes);
}
// Weights in, weight gradients out, and the same rows with their gradients.
constexpr double MoeFfnGradBytes(const MoeFfnProblem& p) { return 2 * MoeFfnBytes(p); }

}  // namespace anabranch

#endif  // ANABRANCH_OPS_MOE_FFN_MOE_FFN_COST_H_
