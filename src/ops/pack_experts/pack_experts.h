// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_H_
#define ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {

// The experts' weights in the order in which the four products of moe_ffn read them, in bf16. With
// them a call of moe_ffn packs nothing; they last until the weights change. All panels together
// take twice the bf16 weights' memory. Elements are in panels of 64 columns, two consecutive k of a
// column side by side: element (k, c) of a panel lies at [k / 2][c][k % 2]. H' and F' are H and F
// made even; missing columns and the k that was added are zero.
//   gate_up             [E, ceil(F/32), H', 64]   columns 32 p ... of w_gate, then the same of w_up
//   down                [E, ceil(H/64), F', 64]   columns 64 p ... of w_down
//   down_transposed     [E, ceil(F/64), H', 64]   rows 64 p ... of w_down as columns
//   gate_up_transposed  [E, ceil(H/64), 2F', 64]  rows 64 p ... of w_gate as columns, k in 0 ...
//   F',
//                                                 then those of w_up
template <bool kConst>
struct BasicPackedExperts {
  BasicTensorView<kConst> gate_up, down;                        // the forward pass
  BasicTensorView<kConst> down_transposed, gate_up_transposed;  // the gradient
};
using PackedExperts = BasicPackedExperts<true>;

// Writes the panels of w_gate, w_up [E,H,F] and w_down [E,F,H], all bf16 or all f32; f32 is rounded
// to the nearest bf16, ties to even.
//   Empty    E, H or F may be 0.
//   Memory   allocates nothing; scratch is PackExpertsScratchBytes().
//   Errors   kInvalidArgument (shapes, types). Panels are untouched on error.
//   Threads  re-entrant; work is spread over context.executor. The bits do not depend on it.
struct PackExpertsArgs {
  ConstTensorView w_gate;
  ConstTensorView w_up;
  ConstTensorView w_down;
  BasicPackedExperts<false> packed;
};
Status PackExperts(const PackExpertsArgs& args, Context& context);
int64_t PackExpertsScratchBytes(const PackExpertsArgs& args, int num_workers);

// kInvalidArgument, in the name of `op`, unless the panels have the shapes of experts [E,H,F].
Status CheckForwardPanels(const char* op, const PackedExperts& packed, int64_t experts,
                          int64_t hidden, int64_t width);
Status CheckGradientPanels(const char* op, const PackedExperts& packed, int64_t experts,
                           int64_t hidden, int64_t width);

// The oracle: element by element.
void PackExpertsReference(const PackExpertsArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_H_
