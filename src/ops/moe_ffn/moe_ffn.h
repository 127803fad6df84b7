// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_MOE_FFN_MOE_FFN_H_
#define ANABRANCH_OPS_MOE_FFN_MOE_FFN_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "ops/pack_experts/pack_experts.h"
#include "tile/tile.h"

namespace anabranch {

// The routed experts of one mixture-of-experts layer, gather and weighted combine included:
//   gate, up = x[t] @ w_gate[e], x[t] @ w_up[e]         for each slot (t, s) routed to expert e
//   hidden   = activation(gate, up)
//   y[t]     = sum over slots, experts ascending, of weights[t, s] * (hidden @ w_down[e])
//
//   x [T,H] bf16|f32   w_gate, w_up [E,H,F]   w_down [E,F,H]   weights [T,k] f32   y [T,H] as x
//   plan of the T*k slots, as ragged_plan makes it: group_offsets [E+1], row_token [R],
//   slot_row [T,k], all i32; a slot with slot_row -1 is routed nowhere and contributes nothing.
//   gate_up [R, 2F'] as x, F' = MoeFfnSavedColumns: gate in columns 0.., up in columns F'..; what
//   the gradient needs. Absent (or R = 0): not saved.
//   Types     weights of the experts have x's type, or are f32 with x bf16: they are then rounded
//             to bf16 (nearest even) while they are packed, and their gradients come out in f32.
//   Packed    panels of these weights (pack_experts) instead of packing them: the same bits. x must
//             be bf16; of w_gate, w_up and w_down only shapes and types are then looked at. Absent
//             views: weights are packed on the fly. Panels gain most where experts have few rows.
//   Layout    row-major. Outputs must not overlap inputs or each other.
//   Empty     T = 0, experts without rows and plans without rows are normal. Rows past
//             group_offsets[E] are neither read nor written.
//   Numerics  products accumulate in f32, ascending k. gate, up and hidden are rounded to x's type,
//             as is each slot's weighted row; rows are added in f32 in ascending expert order and
//             rounded once. Bitwise equal for any number of threads.
//   Memory    nothing of size [T,E], [E,T,*] or [R,H] exists. Allocates nothing; the scratch is
//             hidden [R,F'] and some megabytes a worker.
//   Errors    kInvalidArgument (shapes, types), kOutOfRange (a plan that does not add up). Outputs
//             are untouched on error.
//   Threads   re-entrant; work is spread over context.executor.
struct MoeFfnArgs {
  tile::Activation activation = tile::Activation::kSwiglu;
  ConstTensorView x;
  ConstTensorView weights;
  ConstTensorView w_gate;
  ConstTensorView w_up;
  ConstTensorView w_down;
  ConstTensorView group_offsets;
  ConstTensorView row_token;
  ConstTensorView slot_row;
  PackedExperts packed = {};  // gate_up and down, or none
  TensorView y;
  TensorView gate_up;
};
Status MoeFfn(const MoeFfnArgs& args, Context& context);

// The gradient. From y_grad [T,H] (x's type) and what the forward call was given and saved:
//   x_grad [T,H] as x   weights_grad [T,k] f32 (0 for slots routed nowhere)
//   w_gate_grad, w_up_grad [E,H,F], w_down_grad [E,F,H] in the type of the weights; exact +0 for an
//   expert without rows.
//   Numerics  a slot's row of x_grad is rounded to x's type and rows are added in f32 in ascending
//             expert order, rounded once; weight gradients are summed in f32 over the expert's rows
//             in row order. weights_grad is <y_grad[t] @ w_down[e]^T, hidden>, never rounded below
//             f32. Bitwise equal for any number of threads.
//   Memory    gate_up is worked in: afterwards it holds the gradients of gate and up.
struct MoeFfnGradArgs {
  tile::Activation activation = tile::Activation::kSwiglu;
  ConstTensorView x;
  ConstTensorView weights;
  ConstTensorView w_gate;
  ConstTensorView w_up;
  ConstTensorView w_down;
  ConstTensorView group_offsets;
  ConstTensorView row_token;
  ConstTensorView slot_row;
  TensorView gate_up;
  PackedExperts packed = {};  // down_transposed and gate_up_transposed, or none
  ConstTensorView y_grad;
  TensorView x_grad;
  TensorView weights_grad;
  TensorView w_gate_grad;
  TensorView w_up_grad;
  TensorView w_down_grad;
};
Status MoeFfnGrad(const MoeFfnGradArgs& args, Context& context);

// F' = F, made even for bf16, so that every row is whole words.
constexpr int64_t MoeFfnSavedColumns(DType dtype, int64_t expert_width) {
  return dtype == DType::kBF16 ? RoundUp(expert_width, 2) : expert_width;
}

// Scratch for a call with these arguments (only shapes are read).
int64_t MoeFfnScratchBytes(const MoeFfnArgs& args, int num_workers);
int64_t MoeFfnGradScratchBytes(const MoeFfnGradArgs& args, int num_workers);

// The oracle: scalar, serial, the same roundings in the same places, sums in double.
Status MoeFfnReference(const MoeFfnArgs& args);
Status MoeFfnGradReference(const MoeFfnGradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_MOE_FFN_MOE_FFN_H_
