// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Every function here reduces to exp of a number that is not positive: softmax subtracts the
// largest logit, the others use exp(-|x|). The loops are branch-free so that the compiler makes
// vectors of them; a lane computes the same bits as the scalar tail, since nothing is fused
// (-ffp-contract=off).
#include "ops/router/scores.h"

#include <bit>
#include <cmath>

namespace anabranch {
namespace {

// exp(x) for x <= 0, within 1.5 ulp; subnormal results are kept; NaN gives NaN.
// exp(x) = 2^n exp(r), |r| <= ln(2)/2: the terms from r^8 / 8! on are below 2^-27.
inline float ExpOfNonPositive(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLowest = -104.0f;     // exp(-104) rounds to 0
  x = x < kLowest ? kLowest : x;
  const float rounded = x * kLog2E + kRound;
  const int32_t n = std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kRound);
  const float whole = rounded - kRound;
  const float r = (x - whole * kLn2High) - whole * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  const float e = 1.0f + (r + r * r * p);
  // 2^n in two steps, since n reaches -150; only the second product can round.
  const int32_t half = n >> 1;
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float rest = std::bit_cast<float>(static_cast<uint32_t>(n - half + 127) << 23);
  return e * scale * rest;
}

// log(1 + u) for 0 <= u <= 1: 2 atanh(z), z = u / (2 + u) <= 1/3; terms from z^17 on are below
// 2^-29.
inline float Log1p(float u) {
  const float z = u / (2.0f + u);
  const float z2 = z * z;
  float p = 1.0f / 15;
  p = p * z2 + 1.0f / 13;
  p = p * z2 + 1.0f / 11;
  p = p * z2 + 1.0f / 9;
  p = p * z2 + 1.0f / 7;
  p = p * z2 + 1.0f / 5;
  p = p * z2 + 1.0f / 3;
  return 2.0f * (z + z * z2 * p);
}

// Below it log(1 + exp(x)) is exp(x) to 2^-29, so that its root is exp(x / 2). Taking that avoids
// the root of a subnormal, which has few digits.
constexpr float kLogIsExp = -20.0f;

inline float Sigmoid(float x, float exp_of_minus_abs) {
  return (x < 0 ? exp_of_minus_abs : 1.0f) / (1.0f + exp_of_minus_abs);
}

// Eight partial results, then a tree: a fixed order, and short enough chains for vectors.
constexpr int64_t kLanes = 8;

template <typename Term>
float Sum(int64_t count, const Term& term) {
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) partial[lane] += term(i + lane);
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) partial[lane] += term(i);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
  }
  return partial[0];
}

// The largest number among x; a NaN is passed over (it shows in the exponentials instead).
float Largest(const float* x, int64_t count) {
  float partial[kLanes];
  for (float& value : partial) value = -INFINITY;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      partial[lane] = x[i + lane] > partial[lane] ? x[i + lane] : partial[lane];
    }
  }
  for (; i < count; ++i) partial[0] = x[i] > partial[0] ? x[i] : partial[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) {
    partial[0] = partial[lane] > partial[0] ? partial[lane] : partial[0];
  }
  return partial[0];
}

void Softmax(const float* x, int64_t count, float* scores) {
  const float largest = Largest(x, count);
  for (int64_t i = 0; i < count; ++i) scores[i] = ExpOfNonPositive(x[i] - largest);
  const float total = Sum(count, [&](int64_t i) { return scores[i]; });
  for (int64_t i = 0; i < count; ++i) scores[i] /= total;
}

}  // namespace

void ComputeScores(ScoreFunction function, const float* x, int64_t count, float* scores) {
  if (IsSoftmax(function)) return Softmax(x, count, scores);
  if (function == ScoreFunction::kSigmoid) {
    for (int64_t i = 0; i < count; ++i) {
      scores[i] = Sigmoid(x[i], ExpOfNonPositive(-std::fabs(x[i])));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float root = ExpOfNonPositive(-0.5f * std::fabs(x[i]));
    const float positive = x[i] < 0 ? 0.0f : x[i];
    const float score = std::sqrt(positive + Log1p(root * root));
    scores[i] = x[i] < kLogIsExp ? root : score;
  }
}

void ComputeScoresGrad(ScoreFunction function, const float* x, const float* scores,
                       const float* d_scores, int64_t count, float* d_x) {
  if (IsSoftmax(function)) {
    const float mean = Sum(count, [&](int64_t i) { return d_scores[i] * scores[i]; });
    for (int64_t i = 0; i < count; ++i) d_x[i] = scores[i] * (d_scores[i] - mean);
    return;
  }
  if (function == ScoreFunction::kSigmoid) {
    // sigmoid(x) sigmoid(-x): 1 - sigmoid(x) would lose its digits for large x.
    for (int64_t i = 0; i < count; ++i) {
      const float e = ExpOfNonPositive(-std::fabs(x[i]));
      d_x[i] = d_scores[i] * (e / ((1.0f + e) * (1.0f + e)));
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const float root = ExpOfNonPositive(-0.5f * std::fabs(x[i]));
    const float slope = Sigmoid(x[i], root * root) / (2.0f * scores[i]);
    d_x[i] = d_scores[i] * (x[i] < kLogIsExp ? 0.5f * root : slope);
  }
}

PreciseScore ComputePreciseScore(ScoreFunction function, double x, double shift) {
  if (IsSoftmax(function)) return {std::exp(x - shift), 1.0};
  const double e = std::exp(-std::fabs(x));
  if (function == ScoreFunction::kSigmoid) {
    return {(x < 0 ? e : 1.0) / (1.0 + e), (x < 0 ? 1.0 : e) / (1.0 + e)};
  }
  const double softplus = (x < 0 ? 0.0 : x) + std::log1p(e);
  const double sigmoid = (x < 0 ? e : 1.0) / (1.0 + e);
  // d log sqrt(softplus) = sigmoid / (2 softplus), which tends to 1/2 as both vanish.
  return {std::sqrt(softplus), softplus == 0 ? 0.5 : sigmoid / (2.0 * softplus)};
}

}  // namespace anabranch
