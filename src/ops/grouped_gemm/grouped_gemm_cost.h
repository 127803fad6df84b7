// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_GROUPED_GEMM_GROUPED_GEMM_COST_H_
#define ANABRANCH_OPS_GROUPED_GEMM_GROUPED_GEMM_COST_H_

#include <cstdint>

#include "base/dtype.h"

// What one product costs; the benchmark divides by these figures and the simulator adds them up.
namespace anabranch {

struct GroupedGemmShape {
  int64_t num_rows;         // rows that belong to a group
  int64_t num_used_groups;  // groups that are not empty: only their weights are read
  int64_t num_groups;
  int64_t k;
  int64_t n;
};

// Forward, dgrad and wgrad multiply equally often: one multiplication and one addition per row and
// weight element.
constexpr double GroupedGemmFlops(const GroupedGemmShape& shape) {
  return 2.0 * shape.num_rows * shape.k * shape.n;
}

// Bytes that must cross the memory bus at least once, with operands read and results written once.
constexpr double GroupedGemmBytes(const GroupedGemmShape& shape, DType x, DType w, DType y) {
  return 1.0 * shape.num_rows * shape.k * SizeOf(x) +
         1.0 * shape.num_used_groups * shape.k * shape.n * SizeOf(w) +
         1.0 * shape.num_rows * shape.n * SizeOf(y);
}
constexpr double GroupedGemmDgradBytes(const GroupedGemmShape& shape, DType dy, DType w, DType dx) {
  return 1.0 * shape.num_rows * shape.n * SizeOf(dy) +
         1.0 * shape.num_used_groups * shape.k * shape.n * SizeOf(w) +
         1.0 * shape.num_rows * shape.k * SizeOf(dx);
}
// Every group's gradient is written, empty ones as zeros.
constexpr double GroupedGemmWgradBytes(const GroupedGemmShape& shape, DType x, DType dy, DType dw) {
  return 1.0 * shape.num_rows * shape.k * SizeOf(x) + 1.0 * shape.num_rows * shape.n * SizeOf(dy) +
         1.0 * shape.num_groups * shape.k * shape.n * SizeOf(dw);
}

}  // namespace anabranch

#endif  // ANABRANCH_OPS_GROUPED_GEMM_GROUPED_GEMM_COST_H_
