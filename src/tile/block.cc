// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/block.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tile/prefetch.h"

namespace anabranch::tile {
namespace {

// Columns of B whose f32 sums are kept while chunks go by, when they cannot be kept in out.
constexpr int64_t kSlabColumns = 512;
// Most of the next block's A that is asked for ahead: a quarter of the second cache level.
constexpr int64_t kAheadBytes = 256 * 1024;

struct Scratch {
  uint32_t* a_words;  // [num_a][a_pitch]
  int64_t a_pitch;
  uint32_t* panel;  // [words][kPanelColumns]
  float* sums;      // [panels of a slab][num_a][kPanelColumns], for more than one chunk
  int64_t bytes;
};

Scratch LayOut(void* block, DType dtype, int64_t num_rows, int64_t num_a) {
  const int64_t all_words = WordsOf(dtype, num_rows);
  const int64_t words = std::min(all_words, kChunkWords);
  ScratchArena arena(block);
  Scratch scratch;
  // One cache line more than the words: rows 4 KiB apart would share one set of the L1 cache.
  scratch.a_pitch = RoundUp(words, 16) + 16;
  scratch.a_words = arena.Take<uint32_t>(num_a * scratch.a_pitch);
  scratch.panel = arena.Take<uint32_t>(words * kPanelColumns);
  scratch.sums = arena.Take<float>(all_words > kChunkWords ? kSlabColumns * num_a : 0);
  scratch.bytes = arena.used_bytes();
  return scratch;
}

class Block {
 public:
  Block(const KernelTable& kernels, const TransposedProduct& product, void* scratch)
      : kernels_(kernels),
        product_(product),
        scratch_(LayOut(scratch, product.dtype, product.num_rows, product.num_a)),
        chunk_rows_(product.dtype == DType::kBF16 ? 2 * kChunkWords : kChunkWords),
        num_chunks_(CeilDiv(product.num_rows, chunk_rows_)) {}

  void Run() {
    SetOutput(product_.out, product_.first_b, false);
    RunOutput(true);
    if (product_.second_out == nullptr) return;
    SetOutput(product_.second_out, product_.second_b, true);
    RunOutput(num_chunks_ > 1);
  }

 private:
  void SetOutput(void* out, int64_t first_b, bool is_second) {
    out_ = out;
    first_b_ = first_b;
    is_second_ = is_second;
  }

  void RunOutput(bool rearrange) {
    // Sums of several chunks live in out itself if the tile may write there, else in a slab.
    const bool in_place = num_chunks_ == 1 || IsDirect(product_.num_b);
    const int64_t slab = in_place ? product_.num_b : kSlabColumns;
    for (int64_t begin = 0; begin < product_.num_b; begin += slab) {
      const int64_t end = std::min(begin + slab, product_.num_b);
      for (int64_t chunk = 0; chunk < num_chunks_; ++chunk) {
        if (rearrange) RearrangeA(chunk);
        RunChunk(chunk, begin, end);
      }
    }
  }

  // Whether tiles that end at block column `end` can be written to out as they are.
  bool IsDirect(int64_t end) const { return product_.out_dtype == DType::kF32 && end % 16 == 0; }

  bool CanStream() const {
    return num_chunks_ == 1 && reinterpret_cast<uintptr_t>(out_) % 64 == 0 &&
           product_.out_pitch * SizeOf(product_.out_dtype) % 64 == 0;
  }

  int64_t RowsOf(int64_t chunk) const {
    return std::min(chunk_rows_, product_.num_rows - chunk * chunk_rows_);
  }

  void RearrangeA(int64_t chunk) {
    kernels_.pack(product_.a_dtype, product_.dtype)
        .transpose(product_.a_rows + chunk * chunk_rows_, RowsOf(chunk), product_.first_a,
                   product_.num_a, scratch_.a_words, scratch_.a_pitch);
  }

  void RunChunk(int64_t chunk, int64_t begin, int64_t end) {
    const int64_t first = chunk * chunk_rows_;
    const int64_t rows = RowsOf(chunk);
    for (int64_t column = begin; column < end; column += kPanelColumns) {
      const int columns = static_cast<int>(std::min<int64_t>(kPanelColumns, end - column));
      kernels_.pack(product_.b_dtype, product_.dtype)
          .rows(product_.b_rows + first, rows, first_b_ + column, columns, kPanelColumns,
                scratch_.panel);
      PlanAhead(column);
      const int64_t words = WordsOf(product_.dtype, rows);
      if (IsDirect(column + columns)) {
        RunDirect(chunk, words, column, columns);
      } else if (columns == kPanelColumns && product_.out_dtype == DType::kBF16 && CanStream()) {
        RunBf16(words, column);
      } else {
        RunThroughTile(chunk, words, begin, column, columns);
      }
    }
  }

  // What the tiles of the panel at `column` ask for: the rows of the panel that comes next, in this
  // product, in its second or in the next block, and a share of the next block's A.
  void PlanAhead(int64_t column) {
    const TransposedProduct* next = product_.next;
    const int64_t panels = CeilDiv(product_.num_b, kPanelColumns);
    const bool has_second = product_.second_out != nullptr;
    turns_ = has_second ? 2 * panels : panels;
    turn_ = (is_second_ ? panels : 0) + column / kPanelColumns;
    next_a_ = next == nullptr ? GatherPrefetch() : RowsOfA(*next);
    if (column + kPanelColumns < product_.num_b) {
      next_b_ = RowsOfPanel(product_, first_b_ + column + kPanelColumns);
    } else if (has_second && !is_second_) {
      next_b_ = RowsOfPanel(product_, product_.second_b);
    } else {
      next_b_ = next == nullptr ? GatherPrefetch() : RowsOfPanel(*next, next->first_b);
    }
  }

  GatherPrefetch RowsOfPanel(const TransposedProduct& product, int64_t first_b) const {
    const int64_t size = SizeOf(product.b_dtype);
    return {product.b_rows, std::min(product.num_rows, chunk_rows_), first_b * size,
            kPanelColumns * size};
  }

  static GatherPrefetch RowsOfA(const TransposedProduct& product) {
    const int64_t size = SizeOf(product.a_dtype);
    const int64_t rows =
        std::min(product.num_rows, kAheadBytes / std::max<int64_t>(1, product.num_a * size));
    return {product.a_rows, rows, product.first_a * size, product.num_a * size};
  }

  // The share of tile `index`. Several chunks are more rows than would stay in the cache.
  void AskAhead(int64_t index) const {
    if (num_chunks_ > 1) return;
    const int64_t tiles = NumRowTiles(product_.num_a);
    next_b_.Step(index, index + 1, tiles);
    next_a_.Step(turn_ * tiles + index, turn_ * tiles + index + 1, turns_ * tiles);
  }

  void GatherRows(RowTile at, const void** rows) const {
    for (int r = 0; r < at.rows; ++r) {
      rows[r] = scratch_.a_words + (at.first + r) * scratch_.a_pitch;
    }
  }

  void RunDirect(int64_t chunk, int64_t words, int64_t column, int columns) {
    const ProductFn multiply = kernels_.product(product_.dtype);
    const Store store = chunk > 0     ? Store::kAccumulate
                        : CanStream() ? Store::kStream
                                      : Store::kWrite;
    float* out = static_cast<float*>(out_) + column;
    const void* rows[kTileRows];
    for (int64_t index = 0; index < NumRowTiles(product_.num_a); ++index) {
      const RowTile at = RowTileAt(product_.num_a, index);
      GatherRows(at, rows);
      AskAhead(index);
      multiply(rows, at.rows, words, scratch_.panel, columns, out + at.first * product_.out_pitch,
               product_.out_pitch, store);
    }
  }

  void RunBf16(int64_t words, int64_t column) {
    const ProductFn multiply = kernels_.product(product_.dtype);
    BF16* out = static_cast<BF16*>(out_) + column;
    const void* rows[kTileRows];
    for (int64_t index = 0; index < NumRowTiles(product_.num_a); ++index) {
      const RowTile at = RowTileAt(product_.num_a, index);
      GatherRows(at, rows);
      AskAhead(index);
      multiply(rows, at.rows, words, scratch_.panel, kPanelColumns,
               out + at.first * product_.out_pitch, product_.out_pitch, Store::kStreamBf16);
    }
  }

  void RunThroughTile(int64_t chunk, int64_t words, int64_t slab_begin, int64_t column,
                      int columns) {
    alignas(kCacheLineBytes) float one_tile[kTileRows * kPanelColumns];
    const ProductFn multiply = kernels_.product(product_.dtype);
    const int64_t size = SizeOf(product_.out_dtype);
    const void* rows[kTileRows];
    void* out_rows[kTileRows];
    for (int64_t index = 0; index < NumRowTiles(product_.num_a); ++index) {
      const RowTile at = RowTileAt(product_.num_a, index);
      GatherRows(at, rows);
      AskAhead(index);
      // Panels of a slab follow each other, num_a rows of 64 sums each.
      float* tile = num_chunks_ == 1 ? one_tile
                                     : scratch_.sums + (column - slab_begin) * product_.num_a +
                                           at.first * kPanelColumns;
      multiply(rows, at.rows, words, scratch_.panel, columns, tile, kPanelColumns,
               chunk == 0 ? Store::kWrite : Store::kAccumulate);
      if (chunk + 1 < num_chunks_) continue;
      for (int r = 0; r < at.rows; ++r) {
        out_rows[r] =
            static_cast<std::byte*>(out_) + ((at.first + r) * product_.out_pitch + column) * size;
      }
      kernels_.epilogue(product_.out_dtype).store(tile, at.rows, columns, out_rows);
    }
  }

  const KernelTable& kernels_;
  const TransposedProduct& product_;
  const Scratch scratch_;
  const int64_t chunk_rows_;
  const int64_t num_chunks_;
  void* out_ = nullptr;
  int64_t first_b_ = 0;
  bool is_second_ = false;
  GatherPrefetch next_a_, next_b_;
  int64_t turn_ = 0, turns_ = 1;  // of the panels that share A
};

void FillZero(const TransposedProduct& product, void* out) {
  const int64_t size = SizeOf(product.out_dtype);
  for (int64_t i = 0; i < product.num_a; ++i) {
    std::memset(static_cast<std::byte*>(out) + i * product.out_pitch * size, 0,
                product.num_b * size);
  }
}

}  // namespace

int64_t TransposedProductScratchBytes(DType dtype, int64_t max_rows, int64_t max_a) {
  return LayOut(nullptr, dtype, max_rows, max_a).bytes;
}

void TransposedProductBlock(const KernelTable& kernels, const TransposedProduct& product,
                            void* scratch) {
  if (product.num_a == 0 || product.num_b == 0) return;
  if (product.num_rows == 0) {
    FillZero(product, product.out);
    if (product.second_out != nullptr) FillZero(product, product.second_out);
    return;
  }
  Block(kernels, product, scratch).Run();
}

}  // namespace anabranch::tile
