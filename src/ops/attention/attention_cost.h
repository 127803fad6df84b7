// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ATTENTION_ATTENTION_COST_H_
#define ANABRANCH_OPS_ATTENTION_ATTENTION_COST_H_

#include <cstdint>

namespace anabranch {

// Sizes of a call: B sequences of S positions, N query heads, M key heads, head sizes D and Dv,
// bytes an element.
struct AttentionProblem {
  int64_t batch;
  int64_t length;
  int64_t heads;
  int64_t kv_heads;
  int64_t size;
  int64_t value_size;
  int64_t element_bytes;
  bool causal;
};

// Pairs of positions of which one sees the other, over all heads; one segment a sequence.
constexpr double AttentionPairs(const AttentionProblem& p) {
  const double length = static_cast<double>(p.length);
  const double pairs = p.causal ? length * (length + 1) / 2 : length * length;
  return static_cast<double>(p.batch * p.heads) * pairs;
}
// Multiply-adds counted as two: scores, and shares times values.
constexpr double AttentionFlops(const AttentionProblem& p) {
  return 2 * static_cast<double>(p.size + p.value_size) * AttentionPairs(p);
}
// Gradients of query, key (D each), of value and of the shares (Dv each). Computing the scores
// again is the method's own business and not counted.
constexpr double AttentionGradFlops(const AttentionProblem& p) {
  return 4 * static_cast<double>(p.size + p.value_size) * AttentionPairs(p);
}

// Bytes that must move at least once: query, key, value and output, and log_sum_exp.
constexpr double AttentionBytes(const AttentionProblem& p) {
  const double rows = static_cast<double>(p.batch * p.length);
  const double sizes = static_cast<double>(p.size + p.value_size);
  const double elements = rows * sizes * static_cast<double>(p.heads + p.kv_heads);
  return elements * static_cast<double>(p.element_bytes) + 4 * rows * static_cast<double>(p.heads);
}
// The same again for the gradients.
constexpr double AttentionGradBytes(const AttentionProblem& p) { return 2 * AttentionBytes(p); }

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ATTENTION_ATTENTION_COST_H_
