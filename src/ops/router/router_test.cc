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

// Runs forward and gradient on num_threads threads with exactly the scratch that they ask for.
Status RunProblem(int num_threads, Problem* problem) {
  ThreadExecutor executor(num_threads);
  const int64_t bytes = RouterScratchBytes(problem->num_experts, num_threads);
  std::vector<char> scratch(bytes + kCacheLineBytes, 77);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  char* aligned = scratch.data() + (RoundUp(address, kCacheLineBytes) - address);
  Context context{&executor, aligned, bytes};
  ANABRANCH_RETURN_IF_ERROR(Router(problem->Args(), context));
  return RouterGrad(problem->GradArgs(), context);
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The bounds of router.h. A gradient is a difference of terms no larger than the sum of all |d|.
void ExpectLikeReference(const Problem& problem) {
  Problem expected = problem;
  RouterReference(expected.Args());
  RouterGradReference(expected.GradArgs());
  Problem first = problem;
  for (int num_threads : {1, 2, 3, 7}) {
    Problem actual = problem;
    const Status status = RunProblem(num_threads, &actual);
    ASSERT_TRUE(status.ok()) << status.message();
    if (num_threads == 1) first = actual;
    EXPECT_TRUE(actual.experts == first.experts && SameBits(actual.weights, first.weights) &&
                SameBits(actual.scores, first.scores) && SameBits(actual.d_logits, first.d_logits))
        << num_threads << " threads";
  }
  const auto num_experts = static_cast<double>(problem.num_experts);
  const double relative = (num_experts / 8 + 16) * 0x1p-24;
  EXPECT_EQ(first.experts, expected.experts);
  ExpectNear(first.scores, expected.scores, relative, "scores");
  ExpectNear(first.weights, expected.weights, relative, "weights");
  for (int64_t token = 0; token < problem.tokens; ++token) {
    double magnitude = 0;
    for (int64_t j = 0; j < problem.options.topk; ++j) {
      magnitude += std::fabs(problem.options.scaling_factor *
                             problem.d_weights[token * problem.options.topk + j]);
    }
    for (int64_t e = 0; e < problem.num_experts; ++e) {
      const int64_t i = token * problem.num_experts + e;
      // sqrtsoftplus has slopes above 1/2 only where the score exceeds 1/2.
      EXPECT_NEAR(first.d_logits[i], expected.d_logits[i],
                  2 * relative * (magnitude + num_experts * std::fabs(problem.d_scores[i]) + 4));
    }
  }
}

TEST(RouterTest, EqualsTheOracle) {
  const struct {
    int64_t tokens, num_experts, topk, num_groups, group_topk, group_score;
  } shapes[] = {{1, 1, 1, 1, 1, 2},     {5, 7, 3, 1, 1, 2},    {130, 64, 8, 8, 3, 2},
                {67, 256, 8, 8, 4, 2},  {33, 12, 4, 4, 2, 1},  {33, 24, 6, 4, 3, 3},
                {19, 9, 9, 1, 1, 2},    {40, 16, 16, 4, 4, 2}, {700, 160, 6, 8, 3, 1},
                {40, 100, 16, 1, 1, 2}, {20, 300, 20, 1, 1, 2}};
  uint32_t seed = 0;
  for (const auto& shape : shapes) {
    for (ScoreFunction function : kFunctions) {
      for (bool normalize : {false, true}) {
        for (bool biased : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << "E=" << shape.num_experts << " k=" << shape.topk
                       << " function=" << static_cast<int>(function) << " normalize=" << normalize
                       << " biased=" << biased << " seed=" << ++seed);
          Problem problem(shape.tokens, shape.num_experts,
                          {function, shape.topk, shape.num_groups, shape.group_topk,
                           shape.group_score, normalize, 2.5f});
          Fill(seed, &problem);
          for (int64_t e = 0; biased && e < shape.num_experts; ++e) {
            problem.bias.push_back(static_cast<float>((e * 37) % 11) / 8 - 0.7f);
          }
          ExpectLikeReference(problem);
        }
      }
    }
  }
}

// bf16 logits are exact in f32, so both types must give the same bits.
TEST(RouterTest, BF16EqualsF32) {
  Problem problem(50, 33,
                  {.score_function = ScoreFunction::kSigmoid, .topk = 4, .normalize = true});
  Fill(9, &problem);
  std::vector<BF16> logits, d_logits(problem.logits.size());
  for (float& x : problem.logits) {
    logits.push_back(ToBF16(x));
    x = ToFloat(logits.back());
  }
  ASSERT_TRUE(RunProblem(1, &problem).ok());
  Problem other = problem;
  RouterArgs args = other.Args();
  args.logits = ConstTensorView(logits.data(), {50, 33});
  RouterGradArgs grad_args = other.GradArgs();
  grad_args.logits = args.logits;
  grad_args.d_logits = TensorView(d_logits.data(), {50, 33});
  SerialExecutor executor;
  alignas(64) char scratch[4096];
  Context context{&executor, scratch, sizeof(scratch)};
  ASSERT_TRUE(Router(args, context).ok());
  ASSERT_TRUE(RouterGrad(grad_args, context).ok());
  EXPECT_EQ(other.experts, problem.experts);
  EXPECT_TRUE(SameBits(other.weights, problem.weights));
  for (size_t i = 0; i < d_logits.size(); ++i) {
    EXPECT_EQ(d_logits[i].bits, ToBF16(problem.d_logits[i]).bits);
  }
}

TEST(RouterTest, TiesGoToTheLowestIndex) {
  for (ScoreFunction function : kFunctions) {
    Problem problem(2, 6, {.score_function = function, .topk = 3});
    problem.logits = {0, 0, 0, 0, 0, 0, /**/ -0.0f, 1, 0, 1, 0, 1};
    ASSERT_TRUE(RunProblem(1, &problem).ok());
    EXPECT_EQ(problem.experts, Ids({0, 1, 2, 1, 3, 5}));
  }
}

// More experts than the selection's lanes, all logits equal but a few.
TEST(RouterTest, TiesAmongManyExperts) {
  Problem problem(1, 131, {.score_function = ScoreFunction::kSigmoid, .topk = 6});
  problem.logits[130] = 1;
  problem.logits[77] = 1;
  ASSERT_TRUE(RunProblem(1, &problem).ok());
  EXPECT_EQ(problem.experts, Ids({77, 130, 0, 1, 2, 3}));
}

TEST(RouterTest, NanStaysInItsToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ScoreFunction function : kFunctions) {
    for (bool normalize : {false, true}) {
      for (int64_t group_topk : {1, 2}) {
        const RouterOptions options{function, 3, 2, group_topk, 2, normalize, 1.0f};
        Problem clean(3, 8, options);
        Fill(3, &clean);
        Problem dirty = clean;
        dirty.logits[8 + 6] = -nan;
        ASSERT_TRUE(RunProblem(1, &clean).ok());
        ASSERT_TRUE(RunProblem(1, &dirty).ok());
        const std::set<int32_t> ids(dirty.experts.begin() + 3, dirty.experts.begin() + 6);
        EXPECT_EQ(ids.size(), 3u);
        EXPECT_TRUE(*ids.begin() >= 0 && *ids.rbegin() < 8);
        EXPECT_TRUE(std::any_of(dirty.weights.begin() + 3, dirty.weights.begin() + 6,
                                [](float w) { return std::isnan(w); }));
        for (int64_t j : {0, 1, 2, 6, 7, 8}) EXPECT_EQ(dirty.weights[j], clean.weights[j]);
        for (int64_t i = 0; i < 24; ++i) {
          if (i / 8 != 1) {
            EXPECT_EQ(dirty.d_logits[i], clean.d_logits[i]);
          }
        }
      }
    }
  }
}

TEST(RouterTest, TinyScoresStillSumToOne) {
  for (ScoreFunction function : kFunctions) {
    for (float level : {-30.0f, -80.0f, -95.0f, -300.0f}) {
      Problem problem(1, 5, {.score_function = function, .topk = 3, .normalize = true});
      problem.logits = {level, level - 1, level - 2, level - 3, level - 4};
      problem.d_weights = {1, 0, 0};
      ASSERT_TRUE(RunProblem(1, &problem).ok());
      EXPECT_NEAR(problem.weights[0] + problem.weights[1] + problem.weights[2], 1, 3 * 0x1p-24);
      for (float d : problem.d_logits) EXPECT_TRUE(std::isfinite(d));
    }
    // No score left at all: nothing to divide by.
    Problem problem(1, 4,
                    {.score_function = ScoreFunction::kSigmoid, .topk = 2, .normalize = true});
    problem.logits.assign(4, -std::numeric_limits<float>::infinity());
    ASSERT_TRUE(RunProblem(1, &problem).ok());
    EXPECT_EQ(problem.weights, Floats({0, 0}));
  }
}

// The whole range of the exponential, subnormal results included, against f64.
TEST(RouterTest, ScoresAreAccurateOverTheWholeRange) {
  constexpr int64_t kCount = 4000;
  for (ScoreFunction function : {ScoreFunction::kSigmoid, ScoreFunction::kSqrtSoftplus}) {
    Problem problem(1, kCount, {.score_function = function, .topk = 1});
    for (int64_t i = 0; i < kCount; ++i) problem.logits[i] = 0.0531f * (i - kCount / 2);
    Problem expected = problem;
    ASSERT_TRUE(RunProblem(1, &problem).ok());
    RouterReference(expected.Args());
    for (int64_t i = 0; i < kCount; ++i) {
      // A subnormal cannot be closer than the spacing of subnormals.
      EXPECT_NEAR(problem.scores[i], expected.scores[i], 0x1p-21 * expected.scores[i] + 0x1p-149)
          << problem.logits[i];
    }
  }
}

TEST(RouterTest, NoTokens) {
  Problem problem(0, 4, {.topk = 2});
  EXPECT_TRUE(RunProblem(2, &problem).ok());
}

TEST(RouterTest, ErrorsNameArgumentValueAndRule) {
  const auto message = [](int64_t num_experts, RouterOptions options) {
    Problem problem(2, num_experts, options);
    return RunProblem(1, &problem).message();
  };
  EXPECT_EQ(message(4, {.topk = 5}), "router: topk=5; must be in [1, 4], the number of experts");
  EXPECT_EQ(message(4, {.topk = 1, .num_groups = 3}),
            "router: num_groups=3; must divide the 4 experts");
  EXPECT_EQ(message(4, {.topk = 1, .num_groups = 2, .group_topk = 3}),
            "router: group_topk=3; must be in [1, 2], the number of groups");
  EXPECT_EQ(message(8, {.topk = 3, .num_groups = 4, .group_topk = 1}),
            "router: topk=3 exceeds the 2 experts of group_topk=1 groups of 2");
  EXPECT_EQ(message(8, {.topk = 1, .num_groups = 4, .group_topk = 1, .group_score = 3}),
            "router: group_score=3; must be in [1, 2], the size of a group");
  ScoreFunction function;
  EXPECT_NE(ParseScoreFunction("tanh", &function).message().find("score_function=tanh"),
            std::string::npos);

  Problem problem(2, 4, {.topk = 2});
  RouterGradArgs args = problem.GradArgs();
  problem.experts = {0, 1, 4, 2};
  SerialExecutor executor;
  alignas(64) char scratch[4096];
  Context context{&executor, scratch, sizeof(scratch)};
  const Status status = RouterGrad(args, context);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(),
            "router_grad: experts[token=1, slot=0]=4 is out of range; must be in [0, 4)");
  Context no_scratch{&executor, nullptr, 0};
  EXPECT_EQ(Router(problem.Args(), no_scratch).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace anabranch
