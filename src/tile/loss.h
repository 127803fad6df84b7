// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_LOSS_H_
#define ANABRANCH_TILE_LOSS_H_

#include <cstdint>

// Epilogues of a product whose columns are the classes of a cross entropy. They work on a tile that
// the product left in L1: element (r, c), the logit of row r and class c, at tile[r * 64 + c].
namespace anabranch::tile {

// A row's log-sum-exp so far: the maxima, then the sums of exponentials above them, of 16 classes
// of columns (column modulo 16). One lane each, so that no column waits for another of its tile.
inline constexpr int kLossLanes = 16;
inline constexpr int kLossStateFloats = 2 * kLossLanes;
// The maximum of no column. Finite, so that a logit of -inf is a share of 0 and not a NaN.
inline constexpr float kLossFloor = -3.4028234663852886e38f;

// What the gradient of a row needs.
struct LossRow {
  float normaliser;  // log-sum-exp of the row
  float share;       // gradient of the loss by the normaliser
  float cotangent;   // gradient that the label's logit loses
  int32_t label;
};

struct LossEpilogue {
  // Adds the tile's columns to the states of its rows (row r at states + r * kLossStateFloats). A
  // new state has maxima kLossFloor and sums 0. A NaN logit makes the sum NaN.
  void (*fold)(const float* tile, int rows, int columns, float* states);
  // The row's log-sum-exp is maxima[r] + log(sums[r]).
  void (*reduce)(const float* states, int64_t rows, float* maxima, float* sums);
  // out_rows[r][c] = T(share * exp(tile[r, c] - normaliser) - (label == first_column + c ?
  // cotangent : 0)) for c < columns, and 0 for columns <= c < stored.
  void (*grad_f32)(const float* tile, int rows, int64_t first_column, int columns, int stored,
                   const LossRow* loss_rows, void* const* out_rows);
  void (*grad_bf16)(const float* tile, int rows, int64_t first_column, int columns, int stored,
                    const LossRow* loss_rows, void* const* out_rows);
};

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_LOSS_H_
