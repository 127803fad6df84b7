// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_LINEAR_LINEAR_H_
#define ANABRANCH_OPS_LINEAR_LINEAR_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

// The product of rows with one matrix, and its two gradients: a grouped product of one group that
// holds every row (ops/grouped_gemm/grouped_gemm.h, whose types, numerics, scratch and threading
// hold here too).
//   x [M, K], y [M, N], w [K, N]; row-major and contiguous. Rows in bf16 may meet w in f32: w is
//   then rounded to bf16 while it is packed, and its gradient is an f32 result like any other.
//   Errors    as there, under the names of the grouped product; kInvalidArgument also for M above
//             2^31 - 1.
namespace anabranch {

// y = x @ w.
struct LinearArgs {
  ConstTensorView x;  // [M, K] bf16 | f32
  ConstTensorView w;  // [K, N] type of x, or f32
  TensorView y;       // [M, N] f32 | bf16
};
int64_t LinearScratchBytes(const LinearArgs& args, int num_workers);
Status Linear(const LinearArgs& args, const Context& context);

// dx = dy @ transpose(w).
struct LinearDgradArgs {
  ConstTensorView dy;  // [M, N] bf16 | f32
  ConstTensorView w;   // [K, N] type of dy, or f32
  TensorView dx;       // [M, K] f32 | bf16
};
int64_t LinearDgradScratchBytes(const LinearDgradArgs& args, int num_workers);
Status LinearDgrad(const LinearDgradArgs& args, const Context& context);

// dw = transpose(x) @ dy. num_leaves as in GroupedGemmWgradArgs.
struct LinearWgradArgs {
  ConstTensorView x;   // [M, K] bf16 | f32
  ConstTensorView dy;  // [M, N], type of x
  TensorView dw;       // [K, N] f32 | bf16
  int64_t num_leaves = 1;
};
int64_t LinearWgradScratchBytes(const LinearWgradArgs& args, int num_workers);
Status LinearWgrad(const LinearWgradArgs& args, const Context& context);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_LINEAR_LINEAR_H_
