// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ADAMW_ADAMW_H_
#define ANABRANCH_OPS_ADAMW_ADAMW_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "tile/optimizer.h"

namespace anabranch {

// One step of AdamW (Loshchilov & Hutter 2019) on one parameter, in one pass over four arrays:
//   g = clip_factor * gradient
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g * g
//   update    = -learning_rate * (correction1 * m / (sqrt(correction2 * v) + epsilon)
//                                 + weight_decay * parameter)
//   parameter = parameter + update
//
//   gradient, parameter, m, v, new_parameter, new_m, new_v   f32, any shape, all the same
//   scalars   f32 [kAdamwScalars], in the order of tile::AdamwScalars: numbers of the step, so that
//             a changed one needs no new program.
//   Skipped   with scalars.applied 0 the step does not happen: results are the inputs, bit for bit,
//             whatever the gradient holds.
//   Update    with emit_update the first result is the update instead of the parameter.
//   In place  a result may be the array of its input; other overlaps are not allowed.
//   Numerics  f32, every operation rounded on its own, in the order of the formulas:
//             the same bits on every instruction set and for any number of threads.
//   Memory    allocates nothing, needs no scratch.
//   Errors    kInvalidArgument (shapes, types). Results are untouched on error.
//   Threads   re-entrant; work is spread over context.executor.
inline constexpr int64_t kAdamwScalars = sizeof(tile::AdamwScalars) / sizeof(float);
struct AdamwArgs {
  bool emit_update = false;
  ConstTensorView scalars;
  ConstTensorView gradient;
  ConstTensorView parameter;
  ConstTensorView m;
  ConstTensorView v;
  TensorView new_parameter;
  TensorView new_m;
  TensorView new_v;
};
Status Adamw(const AdamwArgs& args, Context& context);

// sum [P] f32 = sums of values[i]^2 over P equal runs of values, f32 of any shape: what a global
// norm is made of. With one sum for each expert it does not depend on which rank holds which
// experts.
//   Numerics  f32 in 64 interleaved sums over blocks of kSquareBlock elements, blocks in ascending
//             order in double, rounded once; every run for itself. Bitwise equal for any number of
//             threads.
//   Memory    8 bytes of scratch a block: SumOfSquaresScratchBytes().
inline constexpr int64_t kSquareBlock = 16384;
struct SumOfSquaresArgs {
  ConstTensorView values;
  TensorView sum;
};
Status SumOfSquares(const SumOfSquaresArgs& args, Context& context);
int64_t SumOfSquaresScratchBytes(const SumOfSquaresArgs& args);

// The oracles: scalar, serial, in double, rounded once at the end. They check nothing.
Status AdamwReference(const AdamwArgs& args);
Status SumOfSquaresReference(const SumOfSquaresArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ADAMW_ADAMW_H_
