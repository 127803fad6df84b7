// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ROUTER_ROUTER_COST_H_
#define ANABRANCH_OPS_ROUTER_ROUTER_COST_H_

#include <cstdint>

// Bytes that must move, each operand once; the router does no matrix product, and its time is
// that of one exponential and one comparison per logit.

namespace anabranch {

constexpr int64_t RouterBytes(int64_t tokens, int64_t num_experts, int64_t topk,
                              int64_t logit_bytes) {
  return tokens * (num_experts * (logit_bytes + 4) + 8 * topk) + 4 * num_experts;
}

constexpr int64_t RouterGradBytes(int64_t tokens, int64_t num_experts, int64_t topk,
                                  int64_t logit_bytes) {
  return tokens * (num_experts * (2 * logit_bytes + 4) + 8 * topk);
}

// One exponential counted as 20 operations (8 of range reduction, 12 of the polynomial), and about
// 4 more per logit for the score and the comparison.
constexpr int64_t RouterFlops(int64_t tokens, int64_t num_experts) {
  return 24 * tokens * num_experts;
}

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ROUTER_ROUTER_COST_H_
