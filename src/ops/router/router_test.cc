// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/router/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"

namespace anabranch {
namespace {

using Ids = std::vector<int32_t>;
using Floats = std::vector<float>;

// The arrays of one routing problem; logits in f32 unless bf16 is set.
struct Problem {
  Problem(int64_t tokens, int64_t num_experts, RouterOptions options)
      : tokens(tokens),
        num_experts(num_experts),
        options(options),
        logits(tokens * num_experts),
        experts(tokens * options.topk, -7),
        weights(tokens * options.topk, 77),
        scores(tokens * num_experts, 77),
        d_weights(tokens * options.topk),
        d_scores(tokens * num_experts),
        d_logits(tokens * num_experts, 77) {}

  RouterArgs Args() {
    return {ConstTensorView(logits.data(), {tokens, num_experts}),
            bias.empty() ? ConstTensorView() : ConstTensorView(bias.data(), {num_experts}),
            TensorView(experts.data(), {tokens, options.topk}),
            TensorView(weights.data(), {tokens, options.topk}),
            TensorView(scores.data(), {tokens, num_experts}),
            options};
  }
  RouterGradArgs GradArgs() {
    return {ConstTensorView(logits.data(), {tokens, num_experts}),
            ConstTensorView(experts.data(), {tokens, options.topk}),
            ConstTensorView(d_weights.data(), {tokens, options.topk}),
            ConstTensorView(d_scores.data(), {tokens, num_experts}),
            TensorView(d_logits.data(), {tokens, num_experts}),
            options};
  }

  int64_t tokens, num_experts;
  RouterOptions options;
  Floats logits, bias;
  Ids experts;
  Floats weights, scores, d_weights, d_scores, d_logits;
};

void ExpectNear(const Floats& actual, const Floats& expected, double relative, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], relative * std::fabs(expected[i])) << what << " " << i;
  }
}

// Worked by hand; e^0.5 and so on are written out so that the oracle itself is checked.
TEST(RouterReferenceTest, SoftmaxThenTopk) {
  Problem problem(1, 3,
                  {.score_function = ScoreFunction::kSoftmax, .topk = 2, .scaling_factor = 2});
  problem.logits = {0, std::log(2.0f), std::log(5.0f)};
  RouterReference(problem.Args());
  EXPECT_EQ(problem.experts, Ids({2, 1}));
  ExpectNear(problem.scores, {1 / 8.0f, 2 / 8.0f, 5 / 8.0f}, 1e-6, "scores");
  ExpectNear(problem.weights, {10 / 8.0f, 4 / 8.0f}, 1e-6, "weights");
  problem.options.normalize = true;
  RouterReference(problem.Args());
  ExpectNear(problem.weights, {10 / 7.0f, 4 / 7.0f}, 1e-6, "weights");
}

// DeepSeek-V3's rule: the bias chooses groups and experts and does not weigh.
TEST(RouterReferenceTest, BiasAndGroupsSelectOnly) {
  Problem problem(1, 6,
                  {.score_function = ScoreFunction::kSigmoid,
                   .topk = 2,
                   .num_groups = 3,
                   .group_topk = 1,
                   .group_score = 2});
  problem.logits = {3, -3, 1, 1, 0, 0};  // the best expert is alone in its group
  RouterReference(problem.Args());
  EXPECT_EQ(problem.experts, Ids({2, 3}));
  problem.bias = {0, 0, 0, 0, 2, 1};
  RouterReference(problem.Args());
  EXPECT_EQ(problem.experts, Ids({4, 5}));
  EXPECT_EQ(problem.weights, Floats({0.5, 0.5}));
}

TEST(RouterReferenceTest, SqrtSoftplusOfZero) {
  Problem problem(1, 2, {.score_function = ScoreFunction::kSqrtSoftplus, .topk = 1});
  RouterReference(problem.Args());
  EXPECT_EQ(problem.experts, Ids({0}));
  EXPECT_FLOAT_EQ(problem.weights[0], std::sqrt(std::log(2.0f)));
}

constexpr ScoreFunction kFunctions[] = {ScoreFunction::kSoftmax, ScoreFunction::kSoftmaxTopk,
                                        ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus};

// Logits off a lattice without symmetry: two of them are equal or differ by 6 %, and no two group
// sums are equal by accident (sigmoid(x) + sigmoid(-x) = 1), so rounding never decides a rank.
void Fill(uint32_t seed, Problem* problem) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (float& x : problem->logits) x = std::round(normal(generator) * 32) / 16 + 0.3f;
  for (float& d : problem->d_weights) d = normal(generator);
  for (float& d : problem->d_scores) d = normal(generator);
}

// The oracle's gradient against central differences of the oracle's own results.
TEST(RouterReferenceTest, GradientMatchesDifferences) {
  for (ScoreFunction function : kFunctions) {
    for (bool normalize : {false, true}) {
      Problem problem(
          3, 6,
          {.score_function = function, .topk = 3, .normalize = normalize, .scaling_factor = 1.5f});
      Fill(5, &problem);
      const auto objective = [](Problem p) {
        RouterReference(p.Args());
        double total = 0;
        for (size_t i = 0; i < p.weights.size(); ++i)
          total += double(p.weights[i]) * p.d_weights[i];
        for (size_t i = 0; i < p.scores.size(); ++i) total += double(p.scores[i]) * p.d_scores[i];
        return total;
      };
      RouterReference(problem.Args());
      RouterGradReference(problem.GradArgs());
      for (size_t i = 0; i < problem.logits.size(); ++i) {
        constexpr float kStep = 1.0f / 128;  // below half the lattice step, so ranks stay
        Problem up = problem;
        Problem down = problem;
        up.logits[i] += kStep;
        down.logits[i] -= kStep;
        const double difference = (objective(up) - objective(down)) / (2 * kStep);
        // Truncation kStep^2/6 times a third derivative of order 10, and f32 results over 2 kStep.
        EXPECT_NEAR(problem.d_logits[i], difference, 5e-4) << i;
      }
    }
  }
}

}  // namespace
}  // namespace anabranch
