// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H_
#define ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {

// Columns whose exponentials one worker sums before sums are combined.
inline constexpr int64_t kLossSlabColumns = 1024;

// Output projection and cross entropy in one:
//   normaliser[t] = log sum over v of exp(logit[t, v]),  logit = x @ w
//   loss[t]       = normaliser[t] - logit[t, labels[t]] + z_loss * normaliser[t]^2
//
//   x [T,H] bf16|f32   w [H,V]   labels [T] i32, in [0, V) or ignore_index
//   loss, normaliser [T] f32; the gradient needs the normaliser.
//   Ignored   a token whose label is ignore_index has loss, normaliser and x_grad exactly 0 and
//   adds
//             nothing to w_grad, whatever its x holds: its row is not read.
//   Types     w has x's type, or is f32 with x bf16: it is then rounded to bf16 (nearest even)
//   while
//             it is packed, and its gradient comes out in f32.
//   Layout    row-major. Outputs must not overlap inputs or each other.
//   Empty     T = 0 and tokens that are all ignored are normal. V >= 1.
//   Numerics  logits are f32 sums in ascending h, never rounded; sums of exponentials are f32 over
//             slabs of kLossSlabColumns columns, combined in ascending order. Bitwise equal for any
//             number of threads.
//   Memory    logits exist one tile at a time. Allocates nothing.
//   Errors    kInvalidArgument (shapes, types), kOutOfRange (a label). Outputs are untouched on
//             error.
//   Threads   re-entrant; work is spread over context.executor.
struct LinearCrossEntropyArgs {
  int64_t ignore_index = -1;
  float z_loss = 0;
  ConstTensorView x;
  ConstTensorView w;
  ConstTensorView labels;
  TensorView loss;
  TensorView normaliser;
};
Status LinearCrossEntropy(const LinearCrossEntropyArgs& args, Context& context);

// The gradient. From loss_grad [T] f32 and the normaliser of the forward call:
//   logit_grad[t, v] = loss_grad[t] * ((1 + 2 z_loss normaliser[t]) exp(logit - normaliser[t])
//                                      - (v == labels[t]))
//   x_grad [T,H] as x = logit_grad @ w^T   w_grad [H,V] as w = x^T @ logit_grad
//   Numerics  logits are computed again, as in the forward call. logit_grad is formed in f32 and
//             rounded to x's type, in which it is multiplied. x_grad is summed in f32 in ascending
//             v (inside slabs whose width depends on T * num_ranks and the type alone, slabs
//             ascending) and rounded once; w_grad as tile::TransposedProductBlock sums. Bitwise
//             equal for any number of threads.
//   Leaves    with num_leaves (a power of two, at most 64) above 1, w_grad is summed over that many
//             equal runs of tokens as tile::TransposedTreeBlock does. num_ranks is how many such
//             calls share the tokens of a larger one: x_grad then has the bits of that one.
//   Memory    logit_grad exists for one slab of columns, in x's type: about 8 MiB.
struct LinearCrossEntropyGradArgs {
  int64_t ignore_index = -1;
  float z_loss = 0;
  ConstTensorView x;
  ConstTensorView w;
  ConstTensorView labels;
  ConstTensorView normaliser;
  ConstTensorView loss_grad;
  TensorView x_grad;
  TensorView w_grad;
  int64_t num_leaves = 1;
  int64_t num_ranks = 1;
};
Status LinearCrossEntropyGrad(const LinearCrossEntropyGradArgs& args, Context& context);

// Scratch for a call with these arguments (only shapes and types are read).
int64_t LinearCrossEntropyScratchBytes(const LinearCrossEntropyArgs& args, int num_workers);
int64_t LinearCrossEntropyGradScratchBytes(const LinearCrossEntropyGradArgs& args, int num_workers);

// The oracle: scalar, serial, the same roundings in the same places, sums in double. It checks
// nothing.
Status LinearCrossEntropyReference(const LinearCrossEntropyArgs& args);
Status LinearCrossEntropyGradReference(const LinearCrossEntropyGradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LINEAR_CROSS_ENTROPY_H_
