// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_MUON_MUON_H_
#define ANABRANCH_OPS_MUON_MUON_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {

// One step of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) on E matrices,
// an expert's each for itself:
//   g = clip_factor * gradient
//   m = beta * m + (1 - beta) * g
//   u = beta * m + (1 - beta) * g                                                    (Nesterov)
//   update    = -learning_rate * (scale * Orthogonalize(u) + weight_decay * parameter)
//   parameter = parameter + update
// Orthogonalize starts at X = u / (|u| + kMuonEpsilon), |u| the Frobenius norm, and applies
//   A = X X^T;  X = a X + (b A + c A A) X
// `iterations` times with the quintic coefficients below, which carry singular values in (0, 1] to
// about 1 (0.7 to 1.2 after five); the smaller side's Gram matrix is used, X^T X for tall matrices.
//
//   gradient, parameter, m, new_parameter, new_m   f32 [E, M, N], row-major
//   scalars   f32 [kMuonScalars], in the order of MuonScalars.
//   Skipped   with scalars.applied 0 the step does not happen: results are the inputs, bit for bit.
//   Update    with emit_update the first result is the update instead of the parameter.
//   In place  a result may be the array of its input; other overlaps are not allowed.
//   Empty     E, M or N of 0 does nothing.
//   Numerics  products of multiplicands rounded to `multiplicand` (bf16, or f32), summed in f32; X
//             and A are kept in f32 between them. The same bits for any number of threads.
//   Memory    MuonScratchBytes(args, num_workers): with few matrices that of one, with many that of
//             one for each worker; about 16 M N + 18 min(M, N)^2 bytes each.
//   Errors    kInvalidArgument (shapes, types), kResourceExhausted (scratch). Results are then
//             untouched.
//   Threads   re-entrant; work is spread over context.executor.
struct MuonScalars {
  float clip_factor;
  float learning_rate;
  float beta;
  float one_minus_beta;
  float scale;
  float weight_decay;
  float applied;  // 0: the step is skipped
};
inline constexpr int64_t kMuonScalars = sizeof(MuonScalars) / sizeof(float);
inline constexpr float kMuonCoefficients[3] = {3.4445f, -4.7750f, 2.0315f};  // a, b, c
inline constexpr float kMuonEpsilon = 1e-7f;

struct MuonArgs {
  bool emit_update = false;
  int64_t iterations = 5;
  DType multiplicand = DType::kBF16;
  ConstTensorView scalars;
  ConstTensorView gradient;
  ConstTensorView parameter;
  ConstTensorView m;
  TensorView new_parameter;
  TensorView new_m;
};
int64_t MuonScratchBytes(const MuonArgs& args, int num_workers);
Status Muon(const MuonArgs& args, const Context& context);

// The oracle: scalar, serial, in double. It checks nothing and rounds no multiplicand.
Status MuonReference(const MuonArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_MUON_MUON_H_
