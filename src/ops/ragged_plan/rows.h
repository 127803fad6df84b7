// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_RAGGED_PLAN_ROWS_H_
#define ANABRANCH_OPS_RAGGED_PLAN_ROWS_H_

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

// The rows of a RaggedPlan: out of token order into expert order, and back. For all of them
//   Layout    row-major; inputs and outputs must not overlap.
//   Empty     T, R, H and topk may be 0.
//   Memory    allocates nothing, needs no scratch.
//   Errors    kInvalidArgument (shape or type), kOutOfRange (an index outside its array; the first
//   one
//             is named). The outputs are undefined after an error.
//   Threads   re-entrant; spread over context.executor; the same bits for any number of threads.

namespace anabranch {

// rows[r, :] = x[row_token[r], :], or zeros where row_token[r] is -1.
struct GatherRowsArgs {
  ConstTensorView x;          // [T, H] f32 | bf16
  ConstTensorView row_token;  // [R] i32
  TensorView rows;            // [R, H] x's type
};
Status GatherRows(const GatherRowsArgs& args, Context& context);
void GatherRowsReference(const GatherRowsArgs& args);

// row_weights[slot_row[t, j]] = weights[t, j]; zeros in rows that no slot has.
struct GatherWeightsArgs {
  ConstTensorView weights;   // [T, topk] f32
  ConstTensorView slot_row;  // [T, topk] i32
  TensorView row_weights;    // [R] f32
};
Status GatherWeights(const GatherWeightsArgs& args, Context& context);
void GatherWeightsReference(const GatherWeightsArgs& args);

// y[t, :] = sum over the slots j of token t, in ascending order of slot_row[t, j], of
// weights[t, j] * rows[slot_row[t, j], :]; slots with slot_row -1 are left out.
// Rows ascend by expert, so this is ascending expert order.
//   Numerics  each product and each sum is rounded to f32, starting from +0; one rounding to y's
//   type.
struct CombineRowsArgs {
  ConstTensorView rows;      // [R, H] f32 | bf16
  ConstTensorView slot_row;  // [T, topk] i32, topk <= kMaxTopk
  ConstTensorView weights;   // [T, topk] f32, or absent: 1
  TensorView y;              // [T, H] rows' type
};
inline constexpr int64_t kMaxTopk = 256;
Status CombineRows(const CombineRowsArgs& args, Context& context);
void CombineRowsReference(const CombineRowsArgs& args);

// The gradient of CombineRows with weights, for each slot with a row r = slot_row[t, j]:
//   d_rows[r, :] = weights[t, j] * d_y[t, :]         zeros from group_offsets[E] on
//   d_weights[t, j] = sum_h rows[r, h] * d_y[t, h]   zero for a slot without a row
//   Numerics  d_rows is rounded once; d_weights is an f32 sum, |error| <= (H/16 + 5) eps sum |rows
//   d_y|.
struct CombineRowsGradArgs {
  ConstTensorView rows;           // [R, H] f32 | bf16
  ConstTensorView slot_row;       // [T, topk] i32
  ConstTensorView group_offsets;  // [E+1] i32
  ConstTensorView weights;        // [T, topk] f32
  ConstTensorView d_y;            // [T, H] rows' type
  TensorView d_rows;              // [R, H] rows' type
  TensorView d_weights;           // [T, topk] f32
};
Status CombineRowsGrad(const CombineRowsGradArgs& args, Context& context);
void CombineRowsGradReference(const CombineRowsGradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_RAGGED_PLAN_ROWS_H_
