// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_RMS_NORM_RMS_NORM_COST_H_
#define ANABRANCH_OPS_RMS_NORM_RMS_NORM_COST_H_

#include <cstdint>

#include "base/dtype.h"

namespace anabranch {

// Bytes that cross the memory bus with the residual addition: x and branch in, sum and y out.
constexpr double RmsNormBytes(int64_t rows, int64_t columns, DType x, DType y) {
  return 2.0 * rows * columns * (SizeOf(x) + SizeOf(y)) + 4.0 * rows;
}
// x, y_grad and sum_grad in, x_grad and branch_grad out.
constexpr double RmsNormGradBytes(int64_t rows, int64_t columns, DType x, DType y) {
  return 1.0 * rows * columns * (3 * SizeOf(x) + 2 * SizeOf(y)) + 4.0 * rows;
}
// Additions and multiplications, a row's root and division aside.
constexpr double RmsNormFlops(int64_t rows, int64_t columns) { return 5.0 * rows * columns; }
constexpr double RmsNormGradFlops(int64_t rows, int64_t columns) { return 13.0 * rows * columns; }

}  // namespace anabranch

#endif  // ANABRANCH_OPS_RMS_NORM_RMS_NORM_COST_H_
