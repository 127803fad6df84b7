// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/tree_block.h"

#include <bit>
#include <cstddef>

namespace anabranch::tile {
namespace {

// Columns of B whose partial sums are kept while packs go by.
constexpr int64_t kSlabColumns = 512;
constexpr int64_t kTileSize = int64_t{kTileRows} * kPanelColumns;
// A tree of n leaves keeps at most one finished subtree of each height.
constexpr int kMaxLevels = std::bit_width(static_cast<unsigned>(kMaxLeaves));

int NumLevels(int num_leaves) { return std::bit_width(static_cast<unsigned>(num_leaves)); }

struct Scratch {
  uint32_t* a_words;  // [num_a][a_pitch]
  int64_t a_pitch;
  uint32_t* panel;  // [words][kPanelColumns]
  float* levels;    // [levels][panels of a slab][num_a][kPanelColumns], for more than one pack
  int64_t level_size;
  int64_t bytes;
};

Scratch LayOut(void* block, DType dtype, int64_t num_rows, int64_t num_a, int num_leaves) {
  // A leaf with an odd number of bf16 rows fills half a word more.
  const int64_t all_words = WordsOf(dtype, num_rows) + num_leaves;
  const int64_t words = std::min(all_words, kChunkWords);
  ScratchArena arena(block);
  Scratch scratch;
  // One cache line more than the words: rows 4 KiB apart would share one set of the L1 cache. The
  // line also takes what the packing of the last leaf writes past its words.
  scratch.a_pitch = RoundUp(words, 16) + 16;
  scratch.a_words = arena.Take<uint32_t>(num_a * scratch.a_pitch);
  scratch.panel = arena.Take<uint32_t>(words * kPanelColumns);
  scratch.level_size = kSlabColumns * num_a;
  const bool one_pack = all_words <= kChunkWords;
  scratch.levels = arena.Take<float>(one_pack ? 0 : NumLevels(num_leaves) * scratch.level_size);
  scratch.bytes = arena.used_bytes();
  return scratch;
}

// Rows of one leaf that are packed together: the leaf, or kChunkWords words of a larger one.
struct Piece {
  int leaf;
  int64_t first_row;
  int64_t rows;
  int64_t first_word;  // in the pack
  int64_t words;
  bool first;  // of its leaf
  bool last;
};

// Consecutive pieces that fit into kChunkWords words.
struct Pack {
  Piece pieces[kMaxLeaves];
  int count;
  bool last;  // nothing comes after it
};

class Packs {
 public:
  Packs(DType dtype, const RowLeaves& leaves) : dtype_(dtype), leaves_(leaves) {}

  Pack Next() {
    Pack pack;
    pack.count = 0;
    int64_t words = 0;
    while (leaf_ < leaves_.count) {
      const int64_t begin = leaves_.begin[leaf_], left = leaves_.begin[leaf_ + 1] - begin - done_;
      const int64_t rows = std::min(left, dtype_ == DType::kBF16 ? 2 * kChunkWords : kChunkWords);
      const int64_t piece_words = WordsOf(dtype_, rows);
      if (words + piece_words > kChunkWords) break;
      const bool last = rows == left;
      pack.pieces[pack.count++] = {leaf_,       begin + done_, rows, words,
                                   piece_words, done_ == 0,    last};
      words += piece_words;
      leaf_ += last ? 1 : 0;
      done_ = last ? 0 : done_ + rows;
    }
    pack.last = leaf_ == leaves_.count;
    return pack;
  }

 private:
  const DType dtype_;
  const RowLeaves leaves_;
  int leaf_ = 0;
  int64_t done_ = 0;  // rows of that leaf
};

// Subtrees of heights below this are never unfinished, or finished but not yet added to another,
// when a pack ends: with c zeros at the end of the number of leaves that came before, all of height
// c or more are. kMaxLevels when there is one pack.
int CachedLevels(DType dtype, const RowLeaves& leaves) {
  Packs packs(dtype, leaves);
  int levels = kMaxLevels;
  for (Pack pack = packs.Next(); !pack.last; pack = packs.Next()) {
    const Piece& end = pack.pieces[pack.count - 1];
    levels = std::min(levels, end.last ? std::countr_zero(static_cast<unsigned>(end.leaf + 1)) : 0);
  }
  return levels;
}

class TreeBlock {
 public:
  TreeBlock(const KernelTable& kernels, const TransposedProduct& product, const RowLeaves& leaves,
            void* scratch)
      : kernels_(kernels),
        product_(product),
        leaves_(leaves),
        scratch_(LayOut(scratch, product.dtype, product.num_rows, product.num_a, leaves.count)),
        cached_levels_(CachedLevels(product.dtype, leaves)) {}

  void Run() {
    const bool one_pack = cached_levels_ == kMaxLevels;
    const int64_t slab = one_pack ? product_.num_b : kSlabColumns;
    for (int64_t begin = 0; begin < product_.num_b; begin += slab) {
      const int64_t end = std::min(begin + slab, product_.num_b);
      Packs packs(product_.dtype, leaves_);
      for (bool last = false; !last;) {
        const Pack pack = packs.Next();
        last = pack.last;
        RunPack(pack, begin, end);
      }
    }
  }

 private:
  void RunPack(const Pack& pack, int64_t begin, int64_t end) {
    const Packer& pack_a = kernels_.pack(product_.a_dtype, product_.dtype);
    const Packer& pack_b = kernels_.pack(product_.b_dtype, product_.dtype);
    for (int i = 0; i < pack.count; ++i) {
      const Piece& piece = pack.pieces[i];
      pack_a.transpose(product_.a_rows + piece.first_row, piece.rows, product_.first_a,
                       product_.num_a, scratch_.a_words + piece.first_word, scratch_.a_pitch);
    }
    for (int64_t column = begin; column < end; column += kPanelColumns) {
      const int columns = static_cast<int>(std::min<int64_t>(kPanelColumns, end - column));
      for (int i = 0; i < pack.count; ++i) {
        const Piece& piece = pack.pieces[i];
        pack_b.rows(product_.b_rows + piece.first_row, piece.rows, product_.first_b + column,
                    columns, kPanelColumns, scratch_.panel + piece.first_word * kPanelColumns);
      }
      for (int64_t index = 0; index < NumRowTiles(product_.num_a); ++index) {
        const RowTile at = RowTileAt(product_.num_a, index);
        RunTile(pack, at, column - begin, columns);
        if (pack.last) Finish(at, column, columns, column - begin);
      }
    }
  }

  // Where the subtree of height `level` of a tile is kept.
  float* Level(int level, RowTile at, int64_t slab_column) {
    if (level < cached_levels_) return tile_levels_ + level * kTileSize;
    return scratch_.levels + level * scratch_.level_size + slab_column * product_.num_a +
           at.first * kPanelColumns;
  }

  // A leaf is summed where the subtree that it completes will be: with three finished leaves
  // (binary 11) below it, the fourth completes a subtree of height two.
  void RunTile(const Pack& pack, RowTile at, int64_t slab_column, int columns) {
    const ProductFn multiply = kernels_.product(product_.dtype);
    const void* rows[kTileRows];
    float* sums[kTileRows];
    for (int i = 0; i < pack.count; ++i) {
      const Piece& piece = pack.pieces[i];
      const int height = std::countr_one(static_cast<unsigned>(piece.leaf));
      float* sum = Level(height, at, slab_column);
      for (int r = 0; r < at.rows; ++r) {
        rows[r] = scratch_.a_words + (at.first + r) * scratch_.a_pitch + piece.first_word;
        sums[r] = sum + r * kPanelColumns;
      }
      multiply(rows, at.rows, piece.words, scratch_.panel + piece.first_word * kPanelColumns,
               columns, sum, kPanelColumns, piece.first ? Store::kWrite : Store::kAccumulate);
      if (piece.last) Scale(sum, at.rows, columns);
      for (int level = 0; piece.last && level < height; ++level) {
        kernels_.epilogue_f32.combine(Level(level, at, slab_column), at.rows, columns, nullptr,
                                      sums);
      }
    }
  }

  void Scale(float* sum, int rows, int columns) const {
    if (leaves_.scale == 1) return;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < columns; ++c) sum[r * kPanelColumns + c] *= leaves_.scale;
    }
  }

  void Finish(RowTile at, int64_t column, int columns, int64_t slab_column) {
    const int64_t size = SizeOf(product_.out_dtype);
    void* out_rows[kTileRows];
    for (int r = 0; r < at.rows; ++r) {
      out_rows[r] = static_cast<std::byte*>(product_.out) +
                    ((at.first + r) * product_.out_pitch + column) * size;
    }
    const float* sum = Level(NumLevels(leaves_.count) - 1, at, slab_column);
    const Epilogue& epilogue = kernels_.epilogue(product_.out_dtype);
    const bool aligned =
        reinterpret_cast<uintptr_t>(product_.out) % 64 == 0 && product_.out_pitch * size % 64 == 0;
    if (columns == kPanelColumns && aligned) {
      epilogue.stream(sum, at.rows, out_rows);
    } else {
      epilogue.store(sum, at.rows, columns, out_rows);
    }
  }

  const KernelTable& kernels_;
  const TransposedProduct& product_;
  const RowLeaves leaves_;
  const Scratch scratch_;
  const int cached_levels_;  // subtrees below this height never leave the first cache level
  alignas(kCacheLineBytes) float tile_levels_[kMaxLevels * kTileSize];
};

}  // namespace

int64_t TransposedTreeScratchBytes(DType dtype, int64_t max_rows, int64_t max_a, int num_leaves) {
  return LayOut(nullptr, dtype, max_rows, max_a, num_leaves).bytes;
}

void TransposedTreeBlock(const KernelTable& kernels, const TransposedProduct& product,
                         const RowLeaves& leaves, void* scratch) {
  if (product.num_a == 0 || product.num_b == 0) return;
  TreeBlock(kernels, product, leaves, scratch).Run();
}

}  // namespace anabranch::tile
