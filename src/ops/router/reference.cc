// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Scalar oracle of the router, in f64. Ranking uses the f32 scores, as the contract says.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/router/router.h"

namespace anabranch {
namespace {

using Row = std::vector<double>;

Row Logits(const ConstTensorView& logits, int64_t token) {
  Row row(logits.size(1));
  for (int64_t e = 0; e < logits.size(1); ++e) {
    const int64_t i = token * logits.size(1) + e;
    row[e] = logits.dtype() == DType::kBF16 ? ToFloat(logits.as<BF16>()[i]) : logits.as<float>()[i];
  }
  return row;
}

Row Softmax(const Row& x) {
  double largest = -std::numeric_limits<double>::infinity();
  for (double value : x) largest = std::fmax(largest, value);
  double total = 0;
  Row result;
  for (double value : x) total += std::exp(value - largest);
  for (double value : x) result.push_back(std::exp(value - largest) / total);
  return result;
}

bool IsSoftmax(ScoreFunction function) {
  return function == ScoreFunction::kSoftmax || function == ScoreFunction::kSoftmaxTopk;
}

double Softplus(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }

Row Scores(ScoreFunction function, const Row& x) {
  if (IsSoftmax(function)) return Softmax(x);
  Row scores;
  for (double value : x) {
    const bool sigmoid = function == ScoreFunction::kSigmoid;
    scores.push_back(std::isnan(value) ? value
                     : sigmoid         ? 1 / (1 + std::exp(-value))
                                       : std::sqrt(Softplus(value)));
  }
  return scores;
}

// Indices of the count largest, largest first: NaN above all, ties to the lowest index.
std::vector<int64_t> Best(const std::vector<float>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (std::isnan(values[a]) || std::isnan(values[b])) {
      return std::isnan(values[a]) && !std::isnan(values[b]);
    }
    return values[a] > values[b];
  });
  order.resize(count);
  return order;
}

void MaskGroups(const RouterOptions& options, std::vector<float>* ranked) {
  const int64_t size = static_cast<int64_t>(ranked->size()) / options.num_groups;
  std::vector<float> totals;
  for (int64_t group = 0; group < options.num_groups; ++group) {
    const std::vector<float> members(ranked->begin() + group * size,
                                     ranked->begin() + (group + 1) * size);
    float total = 0;
    for (int64_t i : Best(members, options.group_score)) total += members[i];
    totals.push_back(total);
  }
  std::vector<bool> keep(options.num_groups);
  for (int64_t group : Best(totals, options.group_topk)) keep[group] = true;
  for (size_t e = 0; e < ranked->size(); ++e) {
    if (!keep[e / size]) (*ranked)[e] = -std::numeric_limits<float>::infinity();
  }
}

// What is divided by its sum to give normalised weights: scores up to a common factor.
Row ChosenScores(const RouterOptions& options, const Row& x, const Row& scores,
                 const int32_t* ids) {
  Row chosen;
  for (int64_t j = 0; j < options.topk; ++j) chosen.push_back(x[ids[j]]);
  if (options.score_function == ScoreFunction::kSoftmaxTopk) return Softmax(chosen);
  for (int64_t j = 0; j < options.topk; ++j) chosen[j] = scores[ids[j]];
  return chosen;
}

}  // namespace

void RouterReference(const RouterArgs& args) {
  const RouterOptions& options = args.options;
  const int64_t num_experts = args.logits.size(1);
  for (int64_t token = 0; token < args.logits.size(0); ++token) {
    const Row x = Logits(args.logits, token);
    const Row scores = Scores(options.score_function, x);
    std::vector<float> ranked(num_experts);
    for (int64_t e = 0; e < num_experts; ++e) {
      args.scores.as<float>()[token * num_experts + e] = static_cast<float>(scores[e]);
      const bool by_logit = options.score_function == ScoreFunction::kSoftmaxTopk;
      ranked[e] = static_cast<float>(by_logit ? x[e] : scores[e]);
      if (args.expert_bias.has_value()) ranked[e] += args.expert_bias.as<float>()[e];
    }
    if (options.group_topk < options.num_groups) MaskGroups(options, &ranked);
    int32_t* ids = args.experts.as<int32_t>() + token * options.topk;
    std::ranges::copy(Best(ranked, options.topk), ids);
    const Row chosen = ChosenScores(options, x, scores, ids);
    const double sum = std::accumulate(chosen.begin(), chosen.end(), 0.0);
    const double divisor = options.normalize && sum != 0 ? sum : 1;
    for (int64_t j = 0; j < options.topk; ++j) {
      args.weights.as<float>()[token * options.topk + j] =
          static_cast<float>(chosen[j] / divisor * options.scaling_factor);
    }
  }
}

void RouterGradReference(const RouterGradArgs& args) {
  const RouterOptions& options = args.options;
  const int64_t num_experts = args.logits.size(1);
  for (int64_t token = 0; token < args.logits.size(0); ++token) {
    const Row x = Logits(args.logits, token);
    const Row scores = Scores(options.score_function, x);
    const int32_t* ids = args.experts.as<int32_t>() + token * options.topk;
    Row d_scores(num_experts);
    for (int64_t e = 0; e < num_experts; ++e) {
      d_scores[e] = args.d_scores.as<float>()[token * num_experts + e];
    }
    // Through weights = chosen / divisor * scaling_factor.
    const Row chosen = ChosenScores(options, x, scores, ids);
    const double sum = std::accumulate(chosen.begin(), chosen.end(), 0.0);
    const double divisor = options.normalize && sum != 0 ? sum : 1;
    Row d_chosen(options.topk);
    double mean = 0;
    for (int64_t j = 0; j < options.topk; ++j) {
      d_chosen[j] = options.scaling_factor * args.d_weights.as<float>()[token * options.topk + j];
      mean += d_chosen[j] * chosen[j] / divisor;
    }
    for (double& d : d_chosen) d = (options.normalize ? d - mean : d) / divisor;
    // Through the scores.
    Row d_logits(num_experts);
    const bool softmax_topk = options.score_function == ScoreFunction::kSoftmaxTopk;
    double inner = 0;
    for (int64_t j = 0; j < options.topk; ++j) inner += d_chosen[j] * chosen[j];
    for (int64_t j = 0; j < options.topk; ++j) {
      if (softmax_topk) {
        d_logits[ids[j]] += chosen[j] * (d_chosen[j] - inner);
      } else {
        d_scores[ids[j]] += d_chosen[j];
      }
    }
    double outer = 0;
    for (int64_t e = 0; e < num_experts; ++e) outer += d_scores[e] * scores[e];
    for (int64_t e = 0; e < num_experts; ++e) {
      const double sigmoid = 1 / (1 + std::exp(-x[e]));
      const double slope = options.score_function == ScoreFunction::kSigmoid
                               ? sigmoid / (1 + std::exp(x[e]))
                               : sigmoid / (2 * scores[e]);
      d_logits[e] += IsSoftmax(options.score_function) ? scores[e] * (d_scores[e] - outer)
                                                       : d_scores[e] * slope;
      const int64_t i = token * num_experts + e;
      if (args.d_logits.dtype() == DType::kBF16) {
        args.d_logits.as<BF16>()[i] = ToBF16(static_cast<float>(d_logits[e]));
      } else {
        args.d_logits.as<float>()[i] = static_cast<float>(d_logits[e]);
      }
    }
  }
}

}  // namespace anabranch
