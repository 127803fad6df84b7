// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_TREE_BLOCK_H_
#define ANABRANCH_TILE_TREE_BLOCK_H_

#include <cstdint>

#include "tile/block.h"

// One block of a product that contracts over rows, with the rows summed by a fixed binary tree. Who
// holds an aligned run of the leaves computes a subtree of the whole sum, and pairwise sums of such
// results go on with the same tree: the bits then do not depend on how many ranks share the rows.
namespace anabranch::tile {

// Leaf l is rows begin[l] ... begin[l + 1] - 1, and may be empty.
struct RowLeaves {
  const int64_t* begin;  // [count + 1], ascending from 0 to the number of rows
  int count;             // a power of two, at most kMaxLeaves
  float scale = 1;       // of every leaf's sum, before sums are added
};
inline constexpr int kMaxLeaves = 64;

// Where leaf `index` begins when `rows` rows are cut into `count` leaves: a run of leaves that
// starts at a rank's first row cuts that rank's rows as the whole is cut there.
constexpr int64_t LeafBegin(int64_t rows, int count, int index) { return rows * index / count; }

constexpr bool IsLeafCount(int64_t count) {
  return count >= 1 && count <= kMaxLeaves && (count & (count - 1)) == 0;
}

// Scratch of one worker for blocks of up to max_a rows of results over up to max_rows rows.
int64_t TransposedTreeScratchBytes(DType dtype, int64_t max_rows, int64_t max_a, int num_leaves);

// Computes one block as TransposedProductBlock does, but for the order of the sum:
//   Order     a leaf is summed as TransposedProductBlock sums its rows; an empty one is +0. Leaves
//             2 i and 2 i + 1 are added in f32, then pairs of those sums, and so on. The bits of an
//             element depend on the rows and the leaves alone.
//   Scratch   64-byte aligned, TransposedTreeScratchBytes(); contents are undefined.
// Partial sums of up to kChunkWords words of rows stay in the first cache level; above that, those
// of one slab of columns go through scratch.
void TransposedTreeBlock(const KernelTable& kernels, const TransposedProduct& product,
                         const RowLeaves& leaves, void* scratch);

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_TREE_BLOCK_H_
