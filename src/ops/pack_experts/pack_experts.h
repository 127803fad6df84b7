// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_H_
#define ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "tile/prefetch.h"
#include "tile/tile.h"

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

// For operations that read panels: the four kinds, and how one of them is made from plain weights.
enum class ExpertPanel {
  kGateUp,            // x @ [gate | up]: 32 columns of gate, then the same 32 of up; k is hidden
  kDown,              // hidden @ down: 64 columns of the model's width; k is the expert's width
  kDownTransposed,    // y_grad @ down^T: 64 columns of the expert's width; k is the model's
  kGateUpTransposed,  // [gate_grad | up_grad] @ [gate | up]^T: k is the expert's width, twice
};
inline constexpr int kNumExpertPanelKinds = 4;

struct ExpertWeights {
  ConstTensorView w_gate, w_up;  // [E,H,F]
  ConstTensorView w_down;        // [E,F,H]
};

// Sizes of one kind of panel for experts of H x F, multiplied in `dtype`.
struct ExpertPanelShape {
  int64_t panels;         // of one expert
  int64_t panel_columns;  // columns of the product that a panel serves: 32 or 64
  int64_t columns;        // of the product
  int64_t words;          // of one column

  int64_t panel_words() const { return words * tile::kPanelColumns; }
  // Columns of the product in panel `panel`.
  int Columns(int64_t panel) const {
    return static_cast<int>(std::min(panel_columns, columns - panel * panel_columns));
  }
};
ExpertPanelShape ShapeOf(ExpertPanel kind, DType dtype, int64_t hidden, int64_t width);

// Row pointers that packing one panel needs room for.
constexpr int64_t ExpertPanelPointers(int64_t hidden, int64_t width) {
  return std::max({hidden, width, int64_t{tile::kPanelColumns}});
}

// Writes panel `panel` of expert `expert`: ShapeOf(kind, dtype, H, F).panel_words() words.
void PackExpertPanel(const ExpertWeights& weights, ExpertPanel kind, DType dtype, int64_t expert,
                     int64_t panel, const void** pointers, uint32_t* out);

// What PackExpertPanel will read; the second part may be empty.
std::array<tile::PanelPrefetch, 2> PrefetchExpertPanel(const ExpertWeights& weights,
                                                       ExpertPanel kind, int64_t expert,
                                                       int64_t panel);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_PACK_EXPERTS_PACK_EXPERTS_H_
