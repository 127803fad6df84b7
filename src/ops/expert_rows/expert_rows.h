// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_EXPERT_ROWS_EXPERT_ROWS_H_
#define ANABRANCH_OPS_EXPERT_ROWS_EXPERT_ROWS_H_

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "tile/tile.h"

// What lies between the products of an expert where these are calls of their own: the activation,
// and the routing weight of each row. T is f32 or bf16, the same for all of a call's views that
// have it; row-major and contiguous.
//   Empty     nothing is done for no rows; a row of no columns has a weights_grad of 0.
//   Numerics  f32, each result rounded once to its type. Activations to some 3 units in f32's last
//             place; products of weights rounded on their own, and weights_grad is 16 interleaved
//             sums added in ascending order: the same bits on every instruction set.
//   Memory    results must not overlap arguments or each other; no scratch, no allocation.
//   Errors    kInvalidArgument (shapes, types). Results are untouched on error.
//   Threads   re-entrant; work is spread over context.executor; bits do not depend on it.
namespace anabranch {

// hidden = activation(gate, up), element by element.
struct ActivateRowsArgs {
  tile::Activation activation;
  ConstTensorView gate;  // [R, F] T
  ConstTensorView up;    // [R, F] T
  TensorView hidden;     // [R, F] T
};
Status ActivateRows(const ActivateRowsArgs& args, const Context& context);

// gate_grad, up_grad = hidden_grad * d(hidden)/d(gate, up).
struct ActivateRowsGradArgs {
  tile::Activation activation;
  ConstTensorView gate;         // [R, F] T
  ConstTensorView up;           // [R, F] T
  ConstTensorView hidden_grad;  // [R, F] T
  TensorView gate_grad;         // [R, F] T
  TensorView up_grad;           // [R, F] T
};
Status ActivateRowsGrad(const ActivateRowsGradArgs& args, const Context& context);

// out[r, h] = weights[r] * x[r, h].
struct WeighRowsArgs {
  ConstTensorView weights;  // [R] f32
  ConstTensorView x;        // [R, H] f32
  TensorView out;           // [R, H] T
};
Status WeighRows(const WeighRowsArgs& args, const Context& context);

// x_grad[r, h] = weights[r] * out_grad[r, h]; weights_grad[r] = sum over h of out_grad * x.
struct WeighRowsGradArgs {
  ConstTensorView weights;   // [R] f32
  ConstTensorView x;         // [R, H] f32
  ConstTensorView out_grad;  // [R, H] T
  TensorView weights_grad;   // [R] f32
  TensorView x_grad;         // [R, H] f32
};
Status WeighRowsGrad(const WeighRowsGradArgs& args, const Context& context);

// The oracles: scalar, serial, in double, rounded at the end. They check nothing.
void ActivateRowsReference(const ActivateRowsArgs& args);
void ActivateRowsGradReference(const ActivateRowsGradArgs& args);
void WeighRowsReference(const WeighRowsArgs& args);
void WeighRowsGradReference(const WeighRowsGradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_EXPERT_ROWS_EXPERT_ROWS_H_
