// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_BLOCK_H_
#define ANABRANCH_TILE_BLOCK_H_

#include <algorithm>
#include <cstdint>

#include "base/context.h"
#include "tile/tile.h"

// The two loops that every matrix operation puts round the microkernel: many rows against one
// packed panel, and one block of a product that contracts over rows. Both run on one worker; how
// blocks are spread over workers is the operation's business and changes no bit of the result.
namespace anabranch::tile {

// Rows first, ..., first + rows - 1 of a run of rows that is cut into tiles.
struct RowTile {
  int64_t first;
  int rows;
};

constexpr int64_t NumRowTiles(int64_t num_rows) { return CeilDiv(num_rows, kTileRows); }

// Tile `index` of NumRowTiles(num_rows). Tiles are balanced (13 rows are 5 + 4 + 4, not 6 + 6 + 1):
// a tile of one row reaches a third of the speed of a tile of four.
constexpr RowTile RowTileAt(int64_t num_rows, int64_t index) {
  const int64_t tiles = NumRowTiles(num_rows);
  const int64_t base = num_rows / tiles;
  const int64_t larger = num_rows % tiles;  // the first `larger` tiles have base + 1 rows
  const int64_t first = index * base + std::min(index, larger);
  return RowTile{first, static_cast<int>(base + (index < larger ? 1 : 0))};
}

// Multiplies rows a_rows[0 ... num_rows - 1] with one panel, tile by tile in ascending order.
// Calls prepare(first_row, rows) before each tile, to ask for memory, and finish(first_row, rows,
// tile) after it; element (r, c) of the tile lies at tile[r * kPanelColumns + c]. The tile lives
// until finish returns.
template <typename Prepare, typename Finish>
void ForEachRowTile(ProductFn product, const void* const* a_rows, int64_t num_rows, int64_t words,
                    const uint32_t* panel, int columns, const Prepare& prepare,
                    const Finish& finish) {
  alignas(kCacheLineBytes) float tile[kTileRows * kPanelColumns];
  for (int64_t index = 0; index < NumRowTiles(num_rows); ++index) {
    const RowTile at = RowTileAt(num_rows, index);
    prepare(at.first, at.rows);
    product(a_rows + at.first, at.rows, words, panel, columns, tile, kPanelColumns, Store::kWrite);
    finish(at.first, at.rows, static_cast<const float*>(tile));
  }
}

template <typename Finish>
void ForEachRowTile(ProductFn product, const void* const* a_rows, int64_t num_rows, int64_t words,
                    const uint32_t* panel, int columns, const Finish& finish) {
  ForEachRowTile(
      product, a_rows, num_rows, words, panel, columns, [](int64_t, int) {}, finish);
}

// A panel, and what to bring into the second cache level while it is multiplied: usually the packed
// panel that comes next. A wrong guess costs time alone.
struct Panel {
  const uint32_t* words;
  int columns;
  const void* ahead = nullptr;
  int64_t ahead_bytes = 0;
};

// The same, with a panel that may ask for memory ahead (bf16 and all 64 columns; else it does not).
template <typename Prepare, typename Finish>
void ForEachRowTile(const KernelTable& kernels, DType dtype, const void* const* a_rows,
                    int64_t num_rows, int64_t words, const Panel& panel, const Prepare& prepare,
                    const Finish& finish) {
  if (panel.ahead == nullptr || dtype != DType::kBF16 || panel.columns != kPanelColumns) {
    return ForEachRowTile(kernels.product(dtype), a_rows, num_rows, words, panel.words,
                          panel.columns, prepare, finish);
  }
  alignas(kCacheLineBytes) float tile[kTileRows * kPanelColumns];
  const int64_t step = words * kCacheLineBytes;  // of one tile; the first tiles ask for everything
  const int64_t last = std::max<int64_t>(0, panel.ahead_bytes - step);
  for (int64_t index = 0; index < NumRowTiles(num_rows); ++index) {
    const RowTile at = RowTileAt(num_rows, index);
    prepare(at.first, at.rows);
    kernels.product_bf16_ahead(
        a_rows + at.first, at.rows, words, panel.words, tile,
        static_cast<const char*>(panel.ahead) + std::min(index * step, last));
    finish(at.first, at.rows, static_cast<const float*>(tile));
  }
}

// One block of a product that contracts over rows (a weight gradient):
//   out[i, j] = sum over m < num_rows of a_rows[m][first_a + i] * b_rows[m][first_b + j]
// for i < num_a, j < num_b; element (i, j) of the block lies at out[i * out_pitch + j].
struct TransposedProduct {
  const void* const* a_rows;  // num_rows pointers; rows need no common stride (gathered rows)
  const void* const* b_rows;
  int64_t num_rows;  // 0 is allowed and gives exact +0
  DType a_dtype;     // element types of the rows
  DType b_dtype;
  DType dtype;  // what is multiplied; f32 elements are rounded to it while they are packed
  int64_t first_a;
  int64_t num_a;
  int64_t first_b;
  int64_t num_b;
  void* out;
  DType out_dtype;
  int64_t out_pitch;  // elements

  // A second product of the same A with columns second_b ... of b_rows, num_b of them, into
  // second_out: A is rearranged once for both. Null: none.
  void* second_out = nullptr;
  int64_t second_b = 0;
  // What this worker will probably compute next; its rows are asked for meanwhile. May be null.
  const TransposedProduct* next = nullptr;
};

// The largest num_a that TransposedProductBlock takes. The rearranged A (512 columns x 1,024 words)
// is 2 MiB: it is read once per 64 columns of B, at one byte per cycle, so the third cache level
// serves it. The packed panel of B (1,024 words x 64, 256 KiB) is what must stay in the second.
inline constexpr int64_t kMaxBlockColumns = 512;
inline constexpr int64_t kChunkWords = 1024;

// Scratch of one worker for blocks of up to max_a x max_b of products over up to max_rows rows.
int64_t TransposedProductScratchBytes(DType dtype, int64_t max_rows, int64_t max_a);

// Computes one block; num_a <= kMaxBlockColumns, num_b is any number.
//   Order     rows are summed in chunks of kChunkWords words: ascending inside a chunk, chunks in
//             ascending order in f32. The bits of an element depend on num_rows alone, not on how
//             the output is cut into blocks.
//   Stores    results of a single chunk go past the caches when out and out_pitch are multiples of
//             64 bytes; the caller calls StreamFence() once at the end of its unit of work.
//   Scratch   64-byte aligned, TransposedProductScratchBytes(); contents are undefined.
void TransposedProductBlock(const KernelTable& kernels, const TransposedProduct& product,
                            void* scratch);

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_BLOCK_H_
