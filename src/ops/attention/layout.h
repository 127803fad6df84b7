// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ATTENTION_LAYOUT_H_
#define ANABRANCH_OPS_ATTENTION_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "ops/attention/attention.h"
#include "tile/softmax.h"
#include "tile/tile.h"

// What the forward pass and the gradient share: sizes, rows of one head, blocks and their masks.
//
// Every product has queries or features as its columns and keys or features as its rows, so that
// queries lie along the lanes of a vector (tile/softmax.h):
//   scores^T [keys, queries] = key . query^T       A: key rows in place      B: query, transposed
//   output^T [Dv, queries]  += value^T . shares^T  A: value, transposed      B: shares as pairs
namespace anabranch::attention {

// Queries of one panel: a product's columns.
inline constexpr int64_t kPanelQueries = tile::kPanelColumns;
// Keys of one block: a whole number of tiles of even height. The product with values is 96 words
// long, where reading and adding the accumulators costs a twentieth; scores of a panel against a
// block (48 KiB) and its packed shares (24 KiB) stay in the second-level cache.
inline constexpr int64_t kBlockKeys = 192;
static_assert(kBlockKeys % tile::kTileRows == 0 && tile::kTileRows % 2 == 0);

struct Sizes {
  DType type;
  int64_t batch, length, heads, kv_heads, size, value_size;

  int64_t element_bytes() const { return SizeOf(type); }
  int64_t members() const { return heads / kv_heads; }  // query heads that share a key head
  int64_t panels() const { return CeilDiv(length, kPanelQueries); }
  int64_t blocks() const { return CeilDiv(length, kBlockKeys); }
  int64_t words(int64_t elements) const { return tile::WordsOf(type, elements); }
  int64_t whole_words(int64_t elements) const {  // elements of a row padded to whole words
    return words(elements) * 4 / element_bytes();
  }
};

// Sizes from shapes alone.
template <typename Args>
Sizes SizesOf(const Args& args) {
  return {args.query.dtype(), args.query.size(0), args.query.size(1), args.query.size(2),
          args.key.size(2),   args.query.size(3), args.value.size(3)};
}

// kInvalidArgument unless view has this type and shape.
Status CheckView(const char* name, ConstTensorView view, DType dtype,
                 std::initializer_list<int64_t> shape);
// Checks what both passes take.
Status Validate(ConstTensorView query, ConstTensorView key, ConstTensorView value,
                ConstTensorView segment_ids, Sizes* sizes);
Status CheckScratch(const Context& context, int64_t bytes);

// The rows of one head of one sequence in a [B,S,heads,size] array.
struct HeadRows {
  const char* first = nullptr;
  int64_t stride_bytes = 0;

  HeadRows() = default;
  HeadRows(const void* base, const Sizes& sizes, int64_t heads, int64_t row_elements, int64_t b,
           int64_t head)
      : first(static_cast<const char*>(base) +
              (b * sizes.length * heads + head) * row_elements * sizes.element_bytes()),
        stride_bytes(heads * row_elements * sizes.element_bytes()) {}

  void PointTo(int64_t row, int64_t count, const void** pointers) const {
    for (int64_t i = 0; i < count; ++i) pointers[i] = first + (row + i) * stride_bytes;
  }
  // Starts loading the first bytes of rows that are used soon: they lie too far apart for the
  // hardware to guess. Rows past the end do no harm.
  template <bool kForWriting = false>
  void Prefetch(int64_t row, int64_t count, int64_t bytes) const {
    for (int64_t i = 0; i < count; ++i) {
      const char* line = first + (row + i) * stride_bytes;
      for (int64_t at = 0; at < bytes; at += kCacheLineBytes) {
        __builtin_prefetch(line + at, kForWriting ? 1 : 0, 2);
      }
    }
  }
  void PointTo(int64_t row, int64_t count, void** pointers) const {
    for (int64_t i = 0; i < count; ++i) {
      pointers[i] = const_cast<char*>(first) + (row + i) * stride_bytes;
    }
  }
};

// Rows of a [B,S,M,size] array as the A of a product: in place, or copied to padded with a zero
// behind each row when an odd number of bf16 does not fill its last word.
const void* WholeWords(ConstTensorView view, const Sizes& sizes, void* padded);
// Elements of that copy; 0 when none is needed.
int64_t PaddedElements(const Sizes& sizes, int64_t row_elements);

// Transposes a block of keys (rows [first, first + count) of a head): feature f's words along the
// keys at out + f * TransposedPitch. Every block has room for kBlockKeys.
inline int64_t TransposedPitch(const Sizes& sizes) { return sizes.words(kBlockKeys); }
void TransposeBlock(const HeadRows& head, const Sizes& sizes, int64_t first, int64_t count,
                    int64_t features, uint32_t* out);

// Up to 64 queries of one sequence.
struct Panel {
  int64_t first;
  int64_t count;
  int columns;  // count, up to whole 16
  bool causal;
  const int32_t* ids;  // segment ids of the sequence, or null
  int32_t lowest_id = 0, highest_id = 0;
  int32_t padded_ids[kPanelQueries] = {};

  Panel(const Sizes& sizes, bool is_causal, const int32_t* sequence_ids, int64_t first_query);
  bool is_padding() const { return ids != nullptr && lowest_id == 0 && highest_id == 0; }
  // Keys [0, end) hold every key that a query of the panel may see.
  int64_t end(const Sizes& sizes) const { return causal ? first + count : sizes.length; }
};

// How the queries of a panel see a block of keys.
struct BlockView {
  int64_t first;    // first key
  int64_t rows;     // keys of the block
  int64_t keys;     // of these, up to the last that some query may see; 0: skip the block
  bool by_segment;  // ids differ inside, so each score must be checked
};
BlockView ViewBlock(const Sizes& sizes, const Panel& panel, int64_t first_key);

// The keys from row on (row < keys; a whole tile, as far as the block goes) by the queries of the
// panel.
tile::ScoreTile TileAt(const Panel& panel, const BlockView& block, float scale, int64_t row,
                       float* scores);

// Takes [features, queries] f32 rows of 64 to rows of queries: out[query][f] in T of weights[query]
// times acc[f][query].
void StoreTransposed(const Sizes& sizes, const float* acc, int64_t features, int64_t queries,
                     const float* weights, void* const* out_rows);

}  // namespace anabranch::attention

#endif  // ANABRANCH_OPS_ATTENTION_LAYOUT_H_
