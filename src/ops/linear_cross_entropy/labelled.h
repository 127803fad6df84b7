// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LABELLED_H_
#define ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LABELLED_H_

#include <algorithm>
#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "tile/prefetch.h"
#include "tile/tile.h"

// What the forward pass and the gradient share: sizes, the tokens that have a label, and the packed
// panels of the projection.
namespace anabranch::linear_cross_entropy {

struct Sizes {
  DType type;         // of x and of everything that is multiplied
  DType weight_type;  // of w
  int64_t tokens, hidden, vocabulary;

  int64_t element_bytes() const { return SizeOf(type); }
  int64_t hidden_words() const { return tile::WordsOf(type, hidden); }
};

// What both calls are given.
struct Inputs {
  int64_t ignore_index;
  ConstTensorView x, w, labels;
};
template <typename Args>
Inputs InputsOf(const Args& args) {
  return {args.ignore_index, args.x, args.w, args.labels};
}

// Sizes from shapes alone, which must have the right ranks.
Sizes SizesOf(const Inputs& inputs);
// Checks shapes, types and labels.
Status Validate(const Inputs& inputs, Sizes* sizes);
Status CheckView(const char* name, const ConstTensorView& view, DType dtype,
                 std::initializer_list<int64_t> shape);
Status CheckScratch(const Context& context, int64_t needed);

// The tokens that have a label, ascending: the only rows that exist from here on.
struct Labelled {
  int64_t count;
  int32_t* token;       // [count]
  int32_t* label;       // [count]
  const void** x_rows;  // [count]
  BF16* padded;         // copies of the rows with whole words, when hidden is odd in bf16
};
Labelled TakeLabelled(const Sizes& sizes, ScratchArena* arena);
void FillLabelled(const Inputs& inputs, const Sizes& sizes, Labelled* labelled);

// One worker's panel of w and the row pointers that packing needs.
struct PanelScratch {
  uint32_t* panel;
  const void** rows;
};

// Packs columns [column, column + columns) of w, contracted over h.
void PackColumns(const Inputs& inputs, const Sizes& sizes, int64_t column, int columns,
                 const PanelScratch& scratch);
// What PackColumns will read for the panel at `column`; nothing from `end` on.
tile::PanelPrefetch PrefetchColumns(const Inputs& inputs, const Sizes& sizes, int64_t column,
                                    int64_t end);

inline int ColumnsAt(int64_t column, int64_t end) {
  return static_cast<int>(std::min<int64_t>(tile::kPanelColumns, end - column));
}

// Parts of `rows` rows that give every worker some units when there are `others` units for each
// part. A part is large enough to be worth packing a panel again (at 256 rows packing is 5 % of the
// time) and at most max_rows.
int64_t NumRowParts(int64_t rows, int64_t others, int64_t workers, int64_t max_rows);

}  // namespace anabranch::linear_cross_entropy

#endif  // ANABRANCH_OPS_LINEAR_CROSS_ENTROPY_LABELLED_H_
