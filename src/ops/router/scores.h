// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ROUTER_SCORES_H_
#define ANABRANCH_OPS_ROUTER_SCORES_H_

#include <cstdint>

#include "ops/router/router.h"

// Score functions over the logits of one token, and their gradients. Internal to the router.

namespace anabranch {

inline bool IsSoftmax(ScoreFunction function) {
  return function == ScoreFunction::kSoftmax || function == ScoreFunction::kSoftmaxTopk;
}

// scores[0..count) of logits x[0..count).
void ComputeScores(ScoreFunction function, const float* x, int64_t count, float* scores);

// d_x = the gradient through the scores: of sum(d_scores * scores(x)). d_x may be d_scores. scores
// is what ComputeScores wrote.
void ComputeScoresGrad(ScoreFunction function, const float* x, const float* scores,
                       const float* d_scores, int64_t count, float* d_x);

// The score of one logit in f64, and the derivative of its logarithm. For a softmax these are
// exp(x - shift) and 1: its scores up to a factor that normalising removes.
struct PreciseScore {
  double value;
  double log_slope;
};
PreciseScore ComputePreciseScore(ScoreFunction function, double x, double shift);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ROUTER_SCORES_H_
