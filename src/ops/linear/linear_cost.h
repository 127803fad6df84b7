// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_LINEAR_LINEAR_COST_H_
#define ANABRANCH_OPS_LINEAR_LINEAR_COST_H_

#include <cstdint>

#include "base/dtype.h"

namespace anabranch {

// Multiplications and additions of y = x @ w, or of either gradient.
constexpr double LinearFlops(int64_t num_rows, int64_t k, int64_t n) {
  return 2.0 * num_rows * k * n;
}

// Bytes that must cross the memory bus at least once: both operands read and the result written.
// For dgrad and wgrad the three types change places with their tensors.
constexpr double LinearBytes(int64_t num_rows, int64_t k, int64_t n, DType x, DType w, DType y) {
  return 1.0 * num_rows * k * SizeOf(x) + 1.0 * k * n * SizeOf(w) + 1.0 * num_rows * n * SizeOf(y);
}

}  // namespace anabranch

#endif  // ANABRANCH_OPS_LINEAR_LINEAR_COST_H_
