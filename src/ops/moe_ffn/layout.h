// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_MOE_FFN_LAYOUT_H_
#define ANABRANCH_OPS_MOE_FFN_LAYOUT_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "ops/moe_ffn/moe_ffn.h"
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

// Row pointers into expert e of a [experts, rows, columns] weight tensor.
inline void PointToWeightRows(const ConstTensorView& weights, int64_t expert, int64_t first_row,
                              int64_t count, const void** pointers) {
  const int64_t pitch_bytes = weights.size(2) * SizeOf(weights.dtype());
  const char* base = static_cast<const char*>(weights.data()) +
                     (expert * weights.size(1) + first_row) * pitch_bytes;
  for (int64_t i = 0; i < count; ++i) pointers[i] = base + i * pitch_bytes;
}

// Prefetch of rows [first_row, first_row + count), columns [first_column, first_column + columns).
inline tile::PanelPrefetch PrefetchWeights(const ConstTensorView& weights, int64_t expert,
                                           int64_t first_row, int64_t count, int64_t first_column,
                                           int64_t columns) {
  const int64_t bytes = SizeOf(weights.dtype()), pitch_bytes = weights.size(2) * bytes;
  const char* first = static_cast<const char*>(weights.data()) +
                      (expert * weights.size(1) + first_row) * pitch_bytes + first_column * bytes;
  return tile::PanelPrefetch(first, pitch_bytes, count, columns * bytes);
}

}  // namespace anabranch::moe_ffn

#endif  // ANABRANCH_OPS_MOE_FFN_LAYOUT_H_
