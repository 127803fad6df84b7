// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_MOE_FFN_TOKEN_SUM_H_
#define ANABRANCH_OPS_MOE_FFN_TOKEN_SUM_H_

#include <cstdint>

#include "base/context.h"
#include "base/executor.h"
#include "base/tensor_view.h"
#include "ops/moe_ffn/layout.h"

// The products whose rows are added up per token: down in the forward pass, the input's gradient.
namespace anabranch::moe_ffn {

// out[t] = sum over the rows of token t, experts ascending, of round(weight * (row @ panel)),
// rounded once. Work is cut into slabs of column panels and, when there are too few of them for the
// workers, into blocks of tokens: a token's sum always stays with one worker.
struct TokenSum {
  const void* const* a_rows;  // [rows]
  int64_t words;              // of one row
  const float* row_weight;    // [rows] or null
  TensorView out;             // [tokens, hidden]
  PanelSource panels;
};

// Panels that one worker takes together: an expert's rows come from memory once for all of them,
// and its weights in runs of 512 bytes. Forward and gradient of 64 experts with 192 rows each gain
// 4 % of peak over one panel at a time, and 2 % over two.
inline constexpr int64_t kSlabPanels = 4;
// Tokens whose sums are kept at once: 4,096 x 4 panels x 64 columns x 4 bytes = 4 MiB, which the
// third cache level holds. They are touched once per row and asked for before the row's product.
inline constexpr int64_t kTokenBlock = 4096;

// How the work is cut: slabs of at most kSlabPanels panels times blocks of tokens.
struct TokenSumCut {
  int64_t slabs;
  int64_t blocks;
};
TokenSumCut CutTokenSum(int64_t tokens, int64_t hidden, int64_t workers);

// Scratch of one worker.
struct TokenSumScratch {
  float* sums;            // [block][slab's columns]
  uint32_t* panel;        // [words][64]
  const void** pointers;  // [ExpertPanelPointers()]
};
TokenSumScratch TakeTokenSumScratch(const Sizes& sizes, int64_t words, ScratchArena* arena);
void RunTokenSum(const Sizes& sizes, const Rows& rows, const TokenSum& sum,
                 const TokenSumScratch* scratch, Executor* executor);

}  // namespace anabranch::moe_ffn

#endif  // ANABRANCH_OPS_MOE_FFN_TOKEN_SUM_H_
