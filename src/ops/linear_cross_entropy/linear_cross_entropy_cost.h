// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_COST_H_
#define ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_COST_H_

#include <cstdint>

namespace anabranch {

// Sizes of a call: T tokens with a label, H hidden, V vocabulary, bytes an element of x and of w.
struct LinearCrossEntropyProblem {
  int64_t tokens;
  int64_t hidden;
  int64_t vocabulary;
  int64_t row_bytes;
  int64_t weight_bytes;
};

// Multiply-adds counted as two; exponentials are not counted.
constexpr double LinearCrossEntropyFlops(const LinearCrossEntropyProblem& p) {
  return 2.0 * static_cast<double>(p.tokens) * static_cast<double>(p.hidden) *
         static_cast<double>(p.vocabulary);
}
// The gradients of x and w. The machine does half as much again: it computes the logits once more.
constexpr double LinearCrossEntropyGradFlops(const LinearCrossEntropyProblem& p) {
  return 2 * LinearCrossEntropyFlops(p);
}
constexpr double LinearCrossEntropyGradMachineFlops(const LinearCrossEntropyProblem& p) {
  return 3 * LinearCrossEntropyFlops(p);
}

// Bytes that must move at least once: x and w in; label, loss and normaliser of each token.
constexpr double LinearCrossEntropyBytes(const LinearCrossEntropyProblem& p) {
  return static_cast<double>(p.tokens * p.hidden * p.row_bytes +
                             p.hidden * p.vocabulary * p.weight_bytes + 12 * p.tokens);
}
// x and w in, their gradients out.
constexpr double LinearCrossEntropyGradBytes(const LinearCrossEntropyProblem& p) {
  return 2 * LinearCrossEntropyBytes(p);
}

}  // namespace anabranch

#endif  // ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_COST_H_
