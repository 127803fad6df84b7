// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_MOE_FFN_LAYOUT_H_
#define ANABRANCH_OPS_MOE_FFN_LAYOUT_H_

#include <array>
#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "ops/moe_ffn/moe_ffn.h"
#include "ops/pack_experts/pack_experts.h"
#include "tile/block.h"
#include "tile/prefetch.h"
#include "tile/tile.h"

// What the forward pass and the gradient share: sizes, the routing seen from rows, and how work is
// cut into units.
namespace anabranch::moe_ffn {

struct Sizes {
  DType type;         // of x, y and every row
  DType weight_type;  // of the experts' weights
  int64_t tokens, hidden, width, experts, k;
  int64_t capacity;       // row_token's length, R
  int64_t rows;           // group_offsets[E]: rows in use
  int64_t saved;          // F': MoeFfnSavedColumns
  int64_t padded_hidden;  // hidden, made even for bf16

  int64_t element_bytes() const { return SizeOf(type); }
};

// Sizes from shapes alone; rows is taken as capacity.
template <typename Args>
Sizes SizesOf(const Args& args) {
  Sizes s;
  s.type = args.x.dtype();
  s.weight_type = args.w_gate.dtype();
  s.tokens = args.x.size(0);
  s.hidden = args.x.size(1);
  s.width = args.w_gate.size(2);
  s.experts = args.w_gate.size(0);
  s.k = args.slot_row.size(1);
  s.capacity = args.row_token.size(0);
  s.rows = s.capacity;
  s.saved = MoeFfnSavedColumns(s.type, s.width);
  s.padded_hidden = MoeFfnSavedColumns(s.type, s.hidden);
  return s;
}

// The arguments that both calls have.
struct CommonArgs {
  ConstTensorView x, weights, w_gate, w_up, w_down, group_offsets, row_token, slot_row;
};
template <typename Args>
CommonArgs CommonOf(const Args& a) {
  return {a.x, a.weights, a.w_gate, a.w_up, a.w_down, a.group_offsets, a.row_token, a.slot_row};
}

// Checks shapes, types and the plan's values; sets sizes->rows.
Status Validate(const CommonArgs& args, Sizes* sizes);
// Panels are bf16, so x must be.
Status CheckPacking(const ConstTensorView& x);
// Checks one more argument of the given type and shape.
Status CheckView(const char* name, const ConstTensorView& view, DType dtype,
                 std::initializer_list<int64_t> shape);

// The routing seen from rows: for each row its token, slot and weight.
struct Rows {
  const int32_t* offsets;  // [E+1]
  const int32_t* token;    // [rows]
  int32_t* slot;           // [rows] t * k + s
  float* weight;           // [rows]
  int32_t* expert_order;   // [E] most rows first: the long units start early
};
Rows TakeRows(const CommonArgs& args, const Sizes& sizes, ScratchArena* arena);
void FillRows(const CommonArgs& args, const Sizes& sizes, const Rows& rows);

// rows[r] = the row of matrix that row r of the plan reads: its token's (gathered), or its own.
void PointToTokens(const void* matrix, int64_t pitch_bytes, const Sizes& sizes, const Rows& rows,
                   const void** pointers);
void PointToRows(const void* matrix, int64_t pitch_bytes, const Sizes& sizes,
                 const void** pointers);

// Copy of [tokens, hidden] whose rows are whole words, when they are not already (odd hidden in
// bf16); otherwise the matrix itself.
const void* WholeWords(const ConstTensorView& matrix, const Sizes& sizes, void* padded);
int64_t PaddedElements(const Sizes& sizes);  // elements of `padded`; 0 when not needed

// A unit: rows [first, first + rows) of an expert times one panel of its columns.
struct Unit {
  int64_t first;
  int64_t rows;
  int32_t expert;
  int32_t panel;
};
// Rows are cut so that one crowded expert still feeds several workers. Packing a panel again for
// every 768 rows costs less than 1 % of multiplying it.
inline constexpr int64_t kUnitRows = 768;
constexpr int64_t MaxUnits(const Sizes& sizes, int64_t panels) {
  return panels * (sizes.experts + sizes.capacity / kUnitRows);
}
int64_t MakeUnits(const Sizes& sizes, const Rows& rows, int64_t panels, Unit* units);

// Where a product gets its panels: packed ones, or packed here from plain weights.
class PanelSource {
 public:
  PanelSource(const ExpertWeights& weights, const ConstTensorView& packed, ExpertPanel kind,
              const Sizes& sizes)
      : weights_(weights),
        packed_(packed),
        kind_(kind),
        type_(sizes.type),
        shape_(ShapeOf(kind, sizes.type, sizes.hidden, sizes.width)) {}

  const ExpertPanelShape& shape() const { return shape_; }

  // The panel; it may lie in `scratch`, of shape().panel_words(). pointers has room for
  // ExpertPanelPointers().
  tile::Panel Get(int64_t expert, int64_t panel, const void** pointers, uint32_t* scratch) const {
    // A panel of gate and up is always whole: missing columns are zero.
    const int columns =
        kind_ == ExpertPanel::kGateUp ? int{tile::kPanelColumns} : shape_.Columns(panel);
    if (is_packed()) return {Packed(expert, panel), columns};
    PackExpertPanel(weights_, kind_, type_, expert, panel, pointers, scratch);
    return {scratch, columns};
  }

  // Makes the product with `current` ask for the panel that will probably come next. Plain weights
  // are asked for by Prefetch(), or while they are packed.
  void Announce(int64_t expert, int64_t panel, tile::Panel* current) const {
    if (!is_packed()) return;
    current->ahead = Packed(expert, panel);
    current->ahead_bytes = shape_.panel_words() * sizeof(uint32_t);
  }
  std::array<tile::PanelPrefetch, 2> Prefetch(int64_t expert, int64_t panel) const {
    if (is_packed()) return {};
    return PrefetchExpertPanel(weights_, kind_, expert, panel);
  }

 private:
  bool is_packed() const { return packed_.has_value(); }
  const uint32_t* Packed(int64_t expert, int64_t panel) const {
    return static_cast<const uint32_t*>(packed_.data()) +
           (expert * shape_.panels + panel) * shape_.panel_words();
  }

  ExpertWeights weights_;
  ConstTensorView packed_;
  ExpertPanel kind_;
  DType type_;
  ExpertPanelShape shape_;
};

template <typename Args>
ExpertWeights WeightsOf(const Args& args) {
  return {args.w_gate, args.w_up, args.w_down};
}

}  // namespace anabranch::moe_ffn

#endif  // ANABRANCH_OPS_MOE_FFN_LAYOUT_H_
