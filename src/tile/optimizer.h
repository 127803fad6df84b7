// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_OPTIMIZER_H_
#define ANABRANCH_TILE_OPTIMIZER_H_

#include <cstdint>

// Elementwise passes of an optimizer. They belong to the kernel tables because a square root and a
// division of 4 lanes at a time would take longer than the memory does.
namespace anabranch::tile {

// The numbers of one AdamW step. The complements are given because 1 - 0.999f has lost four digits.
struct AdamwScalars {
  float clip_factor;
  float learning_rate;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float epsilon;
  float weight_decay;
  float correction1;  // 1 / (1 - beta1^step)
  float correction2;  // 1 / (1 - beta2^step)
  float applied;      // 0: the step is skipped
};

// Runs of `count` elements of one parameter; results may be the inputs.
struct AdamwRun {
  int64_t count;
  const float* gradient;
  const float* parameter;
  const float* m;
  const float* v;
  float* new_parameter;
  float* new_m;
  float* new_v;
};

struct OptimizerKernels {
  // The formulas of ops/adamw/adamw.h, each operation rounded on its own. new_parameter receives
  // the new parameter, or the update when emit_update is set. scalars.applied is not looked at.
  void (*adamw)(const AdamwScalars& scalars, const AdamwRun& run, bool emit_update);
  // Sum of squares in f32, in 64 interleaved sums that are added in ascending order.
  float (*sum_of_squares)(const float* values, int64_t count);
};

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_OPTIMIZER_H_
