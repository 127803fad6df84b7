// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_NORM_H_
#define ANABRANCH_TILE_NORM_H_

#include <cstdint>

// Root-mean-square normalisation of one row, and its gradient: passes over a row that the first
// cache level holds. X is the type of the stream, Y that of what enters the next product.
namespace anabranch::tile {

struct NormRow {
  int64_t columns;
  float epsilon;
  const void* x;        // X
  const void* branch;   // Y, added to x first; null: nothing is added
  const float* weight;  // [columns]
  void* sum;            // X: x + branch; null without branch
  void* y;              // Y
};

struct NormGradRow {
  int64_t columns;
  float inverse;         // what the forward pass returned for this row
  const void* x;         // X, what was normalised: the sum where there was a branch
  const float* weight;   // [columns]
  const void* y_grad;    // Y
  const void* sum_grad;  // X, added to the result; null: nothing is added
  void* x_grad;          // X
  void* branch_grad;     // Y: x_grad in the branch's type; null: not wanted
  float* weight_grad;    // [columns], += this row's part
};

// The formulas of ops/rms_norm/rms_norm.h. Sums over columns are 64 interleaved ones, added in
// ascending order; every operation rounds on its own: the same bits on every instruction set.
struct NormKernels {
  float (*forward)(const NormRow& row);  // returns 1 / sqrt(mean square + epsilon)
  void (*backward)(const NormGradRow& row);
};

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_NORM_H_
