// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_SOFTMAX_H_
#define ANABRANCH_TILE_SOFTMAX_H_

#include <cstdint>

// Epilogues of attention. Scores lie transposed: a row of a tile is a key, a column a query, so the
// softmax of a query runs down its column and no sum or maximum crosses the lanes of a vector.
// Scores, maxima and normalisers are in units of ln 2: a share is 2^(score - normaliser).
namespace anabranch::tile {

// Some keys by up to 64 queries. columns and first_column are multiples of 16; columns below
// first_column are hidden from every key of the tile and hold nothing.
struct ScoreTile {
  float* scores;  // element (key r, query c) at scores[r * kPanelColumns + c]
  int rows;
  int first_column;
  int columns;
  float scale;       // 1 / ln 2 included
  int64_t diagonal;  // key r is hidden from query c when c < r + diagonal
  // Key r is hidden from query c unless their ids agree and are not 0. Null: one segment.
  const int32_t* key_segments;    // [rows]
  const int32_t* query_segments;  // [columns]
};

// A diagonal that hides nothing.
inline constexpr int64_t kNoDiagonal = -(int64_t{1} << 30);

// T is the type of what is multiplied next, f32 or bf16; a row of T is given as words (tile.h).
struct Softmax {
  // In place: scores become scale * score, or -inf where the key is hidden; tops[c] becomes the
  // largest of them and itself.
  void (*scale)(const ScoreTile& tile, float* tops);
  // A block of keys is done with the scale step and block_tops are its maxima. Moves tops up to
  // them, and takes sums and num_rows rows of accumulators (64 columns each) to the new maxima.
  void (*advance)(float* tops, const float* block_tops, float* sums, float* accumulators,
                  int64_t num_rows, int columns);
  // Shares 2^(score - top) of scaled scores: added to sums in f32, and rounded to T into the panel
  // of a product that contracts over keys. Columns below first_column of the panel become 0. The
  // tile's first key is the first of a word.
  void (*shares)(const ScoreTile& tile, const float* tops, float* sums, uint32_t* panel);
  // Backward, from scores as the product left them and share_grads, laid out as they are:
  //   share = 2^(scale * score - normaliser), 0 where hidden;  grad = share * (share_grad - mean)
  // Rounded to T, shares and grads are written as rows, key r at words r * pitch, queries along the
  // row, and grads also into the panel of a product that contracts over keys. Columns below
  // first_column of the panel become 0; of the rows they are not written.
  void (*grads)(const ScoreTile& tile, const float* share_grads, const float* normalisers,
                const float* means, uint32_t* shares, uint32_t* grads, int64_t pitch,
                uint32_t* panel);
  // out[r] = sum over c < columns of a_rows[r][c] * b_rows[r][c] in f32.
  void (*row_dots)(const void* const* a_rows, const void* const* b_rows, int rows, int64_t columns,
                   float* out);
};

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_SOFTMAX_H_
