// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_GROUPED_GEMM_ARGUMENTS_H_
#define ANABRANCH_OPS_GROUPED_GEMM_ARGUMENTS_H_

#include <cstdint>

#include "base/status.h"
#include "ops/grouped_gemm/grouped_gemm.h"

// The rules of grouped_gemm.h, checked once and in one place for kernels and oracle alike.
namespace anabranch {

// The sizes of a product, and the type in which its operands are multiplied.
struct GroupedGemmProblem {
  int64_t num_rows = 0;    // M
  int64_t num_groups = 0;  // E
  int64_t k = 0;           // rows of a matrix of w
  int64_t n = 0;           // columns of a matrix of w
  DType multiplicand = DType::kF32;
  const int32_t* group_sizes = nullptr;
  int64_t num_used_rows = 0;  // the sum of the group sizes
};

// Check ranks, sizes, types and group sizes, and fill problem.
Status Validate(const GroupedGemmArgs& args, GroupedGemmProblem* problem);
Status Validate(const GroupedGemmDgradArgs& args, GroupedGemmProblem* problem);
Status Validate(const GroupedGemmWgradArgs& args, GroupedGemmProblem* problem);
Status Validate(const GroupedGemmCodedArgs& args, GroupedGemmProblem* problem);
Status Validate(const GroupedGemmDgradCodedArgs& args, GroupedGemmProblem* problem);

// Rows and columns of one block of coded weights.
struct BlockShape {
  int64_t rows, columns;
};
BlockShape BlockShapeOf(const WeightCoding& coding);

// Whether the caller's scratch holds what the operation needs.
Status CheckScratch(const char* op, const Context& context, int64_t needed_bytes);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_GROUPED_GEMM_ARGUMENTS_H_
