// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_RMS_NORM_RMS_NORM_H_
#define ANABRANCH_OPS_RMS_NORM_RMS_NORM_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

// Root-mean-square normalisation of rows (arXiv 1910.07467), with the residual addition before it:
//   sum[t, :]  = x[t, :] + branch[t, :]                      (x itself where there is no branch)
//   inverse[t] = 1 / sqrt(mean over h of sum[t, h]^2 + epsilon)
//   y[t, h]    = sum[t, h] * inverse[t] * weight[h]
//   x, sum [T, H] one type; branch, y [T, H] one type; each of them f32 or bf16. weight [H] and
//   inverse [T] f32. Row-major and contiguous.
//   Empty     T = 0 does nothing; H must be positive.
//   Numerics  f32, every operation rounded on its own, sums over h in 64 interleaved sums; results
//             are rounded to their type, and what is normalised is the rounded sum. The same bits
//             for any number of threads and on every instruction set.
//   Memory    results must not overlap arguments or each other; forward allocates nothing.
//   Errors    kInvalidArgument (shapes, types). Results are untouched on error.
//   Threads   re-entrant; work is spread over context.executor.
namespace anabranch {

struct RmsNormArgs {
  float epsilon;
  ConstTensorView x;       // [T, H] f32 | bf16
  ConstTensorView branch;  // [T, H] type of y, or absent
  ConstTensorView weight;  // [H] f32
  TensorView sum;          // [T, H] type of x; absent without branch
  TensorView y;            // [T, H] f32 | bf16
  TensorView inverse;      // [T] f32
};
Status RmsNorm(const RmsNormArgs& args, Context& context);

// With g = y_grad * weight and n = x * inverse, x being what was normalised:
//   x_grad      = inverse * (g - n * mean over h of (g * n)) + sum_grad
//   branch_grad = x_grad, rounded to its type
//   weight_grad = sum over t of y_grad * n
//   Order     rows are cut into num_leaves leaves, a power of two, leaf i from row T * i /
//   num_leaves
//             on; a leaf is summed in runs of kNormRunRows rows, runs in ascending order, leaves
//             2 i and 2 i + 1 are added, then pairs of those sums, and so on.
//   Memory    RmsNormGradScratchBytes() of scratch: H floats for each run of rows.
inline constexpr int64_t kNormRunRows = 64;
struct RmsNormGradArgs {
  ConstTensorView x;         // [T, H], the sum where there was a branch
  ConstTensorView weight;    // [H] f32
  ConstTensorView inverse;   // [T] f32
  ConstTensorView y_grad;    // [T, H] f32 | bf16
  ConstTensorView sum_grad;  // [T, H] type of x, or absent
  TensorView x_grad;         // [T, H] type of x
  TensorView branch_grad;    // [T, H] type of y_grad, or absent
  TensorView weight_grad;    // [H] f32
  int64_t num_leaves = 1;
};
int64_t RmsNormGradScratchBytes(const RmsNormGradArgs& args);
Status RmsNormGrad(const RmsNormGradArgs& args, Context& context);

// The oracles: scalar, serial, in double, rounded at the end. They check nothing.
Status RmsNormReference(const RmsNormArgs& args);
Status RmsNormGradReference(const RmsNormGradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_RMS_NORM_RMS_NORM_H_
