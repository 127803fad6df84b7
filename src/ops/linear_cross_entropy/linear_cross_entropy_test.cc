// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/poisoned_scratch.h"

namespace anabranch {
namespace {

struct Shape {
  int64_t tokens, hidden, vocabulary;
};

// Owns every array of a forward and a backward call. About one label in five is ignored (-1).
template <typename T, typename W>
struct Problem {
  explicit Problem(const Shape& s, float z = 0) : shape(s), z_loss(z), random(7) {
    x = Random<T>(s.tokens * s.hidden, 1);
    w = Random<W>(s.hidden * s.vocabulary, 1 / std::sqrt(static_cast<float>(s.hidden)));
    loss_grad = Random<float>(s.tokens, 1);
    labels.resize(s.tokens);
    for (int32_t& label : labels) label = random() % 5 == 0 ? -1 : random() % s.vocabulary;
    if (s.tokens == 1) labels[0] = s.vocabulary - 1;
    loss.assign(s.tokens, 99);
    normaliser.assign(s.tokens, 99);
    x_grad.assign(x.size(), FromFloat<T>(99));
    w_grad.assign(w.size(), FromFloat<W>(99));
  }
  template <typename V>
  std::vector<V> Random(int64_t count, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<V> values(count);
    for (V& value : values) value = FromFloat<V>(normal(random));
    return values;
  }
  template <typename Args>
  void SetInputs(Args& a) {
    a.z_loss = z_loss;
    a.x = ConstTensorView(x.data(), {shape.tokens, shape.hidden});
    a.w = ConstTensorView(w.data(), {shape.hidden, shape.vocabulary});
    a.labels = ConstTensorView(labels.data(), kDTypeOf<int32_t>, {shape.tokens});
  }
  LinearCrossEntropyArgs Forward() {
    LinearCrossEntropyArgs a;
    SetInputs(a);
    a.loss = TensorView(loss.data(), {shape.tokens});
    a.normaliser = TensorView(normaliser.data(), {shape.tokens});
    return a;
  }
  LinearCrossEntropyGradArgs Backward() {
    LinearCrossEntropyGradArgs a;
    SetInputs(a);
    a.normaliser = ConstTensorView(normaliser.data(), {shape.tokens});
    a.loss_grad = ConstTensorView(loss_grad.data(), {shape.tokens});
    a.x_grad = TensorView(x_grad.data(), {shape.tokens, shape.hidden});
    a.w_grad = TensorView(w_grad.data(), {shape.hidden, shape.vocabulary});
    return a;
  }

  const Shape shape;
  const float z_loss;
  std::mt19937 random;
  std::vector<T> x, x_grad;
  std::vector<W> w, w_grad;
  std::vector<float> loss_grad, loss, normaliser;
  std::vector<int32_t> labels;
};

TEST(LinearCrossEntropyReferenceTest, EqualLogitsCostTheLogarithmOfTheVocabulary) {
  Problem<float, float> p({3, 4, 10}, 0.5f);
  p.labels = {9, -1, 0};
  std::fill(p.w.begin(), p.w.end(), 0.25f);
  ASSERT_TRUE(LinearCrossEntropyReference(p.Forward()).ok());
  for (int t : {0, 2}) {
    double logit = 0;
    for (int h = 0; h < 4; ++h) logit += 0.25 * p.x[t * 4 + h];
    const double normaliser = logit + std::log(10.0);
    EXPECT_NEAR(p.normaliser[t], normaliser, 1e-6);
    EXPECT_NEAR(p.loss[t], std::log(10.0) + 0.5 * normaliser * normaliser, 1e-6);
  }
  EXPECT_EQ(p.loss[1], 0);
}

// Central differences of sum(loss_grad * loss) by a few elements of x and w. The step h = 2^-10
// leaves h^2 / 6 of the third derivative (at most about 10) and 2^-23 |loss| / h of rounding.
TEST(LinearCrossEntropyReferenceTest, GradientIsTheSlopeOfTheLoss) {
  Problem<float, float> p({6, 5, 11}, 0.1f);
  ASSERT_TRUE(LinearCrossEntropyReference(p.Forward()).ok());
  ASSERT_TRUE(LinearCrossEntropyGradReference(p.Backward()).ok());
  const auto total = [&] {
    EXPECT_TRUE(LinearCrossEntropyReference(p.Forward()).ok());
    double sum = 0;
    for (int t = 0; t < 6; ++t) sum += static_cast<double>(p.loss_grad[t]) * p.loss[t];
    return sum;
  };
  const auto check = [&](float& value, float gradient) {
    const float kept = value, step = 0x1p-10f;
    value = kept + step;
    const double above = total();
    value = kept - step;
    const double below = total();
    value = kept;
    EXPECT_NEAR(gradient, (above - below) / (2 * step), 2e-3);
  };
  for (size_t i = 0; i < p.x.size(); ++i) check(p.x[i], p.x_grad[i]);
  for (size_t i = 0; i < p.w.size(); i += 3) check(p.w[i], p.w_grad[i]);
}

Status Call(const LinearCrossEntropyArgs& args, int threads) {
  return WithPoisonedScratch(LinearCrossEntropyScratchBytes(args, threads), threads,
                             [&](Context& context) { return LinearCrossEntropy(args, context); });
}
Status Call(const LinearCrossEntropyGradArgs& args, int threads) {
  return WithPoisonedScratch(
      LinearCrossEntropyGradScratchBytes(args, threads), threads,
      [&](Context& context) { return LinearCrossEntropyGrad(args, context); });
}

template <typename V>
void ExpectNear(const std::vector<V>& got, const std::vector<V>& want, double bound,
                const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(ToFloat(got[i]), ToFloat(want[i]), bound) << what << " element " << i;
  }
}

// Both sides round in the same places, from sums that differ in the last bits of f32.
//   Loss      a logit, at most 8 here, is off by (H + 1) eps; its exponential by as much, relative;
//             so is the sum. z_loss times the square of the normaliser doubles it a few times.
//   Gradient  each gradient of a logit may fall the other way: one unit of T of its value, which is
//             at most 3 in sum over a row's columns and, over T rows, 3 a row for w_grad with |x|
//             of at most 5. Results are rounded once more.
template <typename T, typename W>
void CheckAgainstReference(const Shape& shape, float z_loss) {
  constexpr bool kBf16 = sizeof(T) == 2;
  Problem<T, W> fast(shape, z_loss), exact(shape, z_loss);
  ASSERT_TRUE(LinearCrossEntropyReference(exact.Forward()).ok());
  const Status forward = Call(fast.Forward(), 2);
  ASSERT_TRUE(forward.ok()) << forward.message();
  const double logit = (shape.hidden + 9) * 0x1p-23 * 8;
  ExpectNear(fast.loss, exact.loss, 4 * logit, "loss");
  ExpectNear(fast.normaliser, exact.normaliser, 2 * logit, "normaliser");
  fast.normaliser = exact.normaliser;
  ASSERT_TRUE(LinearCrossEntropyGradReference(exact.Backward()).ok());
  const Status backward = Call(fast.Backward(), 2);
  ASSERT_TRUE(backward.ok()) << backward.message();
  const double unit = kBf16 ? 1.0 / 256 : 0;
  ExpectNear(fast.x_grad, exact.x_grad, 3 * (2 * unit + 8 * logit), "x_grad");
  ExpectNear(fast.w_grad, exact.w_grad, std::sqrt(shape.tokens + 1.0) * 3 * (2 * unit + 8 * logit),
             "w_grad");
}

constexpr Shape kShapes[] = {
    {24, 64, 128},     // everything whole
    {37, 66, 130},     // tails in every panel
    {33, 16, 1003},    // an odd vocabulary
    {5, 7, 3},         // half-filled words
    {1, 33, 2500},     // one token, several slabs of exponentials
    {300, 20, 4500},   // several slabs of both kinds
    {2500, 18, 1100},  // more rows than a part
    {0, 8, 10},        // no tokens
    {4, 5, 1},         // one class
};

TEST(LinearCrossEntropyTest, MatchesReferenceOnEveryShape) {
  for (const Shape& shape : kShapes) {
    for (float z_loss : {0.0f, 1e-2f}) {
      CheckAgainstReference<float, float>(shape, z_loss);
      CheckAgainstReference<BF16, BF16>(shape, z_loss);
      CheckAgainstReference<BF16, float>(shape, z_loss);
    }
  }
}

template <typename V>
bool SameBits(const std::vector<V>& a, const std::vector<V>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(V)) == 0;
}

TEST(LinearCrossEntropyTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Shape& shape : {Shape{2700, 30, 3001}, Shape{700, 66, 9000}}) {
    Problem<BF16, float> one(shape, 1e-3f);
    ASSERT_TRUE(Call(one.Forward(), 1).ok());
    ASSERT_TRUE(Call(one.Backward(), 1).ok());
    for (int threads : {2, 3, 7}) {
      Problem<BF16, float> many(shape, 1e-3f);
      ASSERT_TRUE(Call(many.Forward(), threads).ok());
      ASSERT_TRUE(Call(many.Backward(), threads).ok());
      EXPECT_TRUE(SameBits(one.loss, many.loss)) << threads;
      EXPECT_TRUE(SameBits(one.normaliser, many.normaliser)) << threads;
      EXPECT_TRUE(SameBits(one.x_grad, many.x_grad)) << threads;
      EXPECT_TRUE(SameBits(one.w_grad, many.w_grad)) << threads;
    }
  }
}

// Four ranks with two leaves each give the bits of one with eight. 2,400 tokens: slabs narrower
// than the widest, so that one cut for a rank's own tokens would change x_grad.
TEST(LinearCrossEntropyTest, BitsDoNotDependOnTheNumberOfRanks) {
  constexpr int64_t kRanks = 4, kTokens = 2400, kHidden = 12, kVocabulary = 3001;
  Problem<BF16, float> whole({kTokens, kHidden, kVocabulary}, 1e-3f);
  ASSERT_TRUE(Call(whole.Forward(), 2).ok());
  LinearCrossEntropyGradArgs args = whole.Backward();
  args.num_leaves = 8;
  ASSERT_TRUE(Call(args, 2).ok());
  std::vector<float> sums[kRanks];
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const int64_t tokens = kTokens / kRanks, first = rank * tokens;
    Problem<BF16, float> part({tokens, kHidden, kVocabulary}, 1e-3f);
    const auto take = [&](auto& to, const auto& from, int64_t width) {
      std::copy_n(from.begin() + first * width, tokens * width, to.begin());
    };
    take(part.x, whole.x, kHidden);
    take(part.labels, whole.labels, 1);
    take(part.loss_grad, whole.loss_grad, 1);
    part.w = whole.w;
    ASSERT_TRUE(Call(part.Forward(), 2).ok());
    args = part.Backward();
    args.num_leaves = 2;
    args.num_ranks = kRanks;
    ASSERT_TRUE(Call(args, 2).ok());
    EXPECT_EQ(std::memcmp(&whole.loss[first], part.loss.data(), tokens * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(&whole.x_grad[first * kHidden], part.x_grad.data(),
                          tokens * kHidden * sizeof(BF16)),
              0);
    sums[rank] = part.w_grad;
  }
  for (size_t i = 0; i < whole.w_grad.size(); ++i) {
    ASSERT_EQ(whole.w_grad[i], (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i])) << i;
  }
}

template <typename V>
bool AllZero(const std::vector<V>& values) {
  return std::all_of(values.begin(), values.end(), [](V v) { return ToFloat(v) == 0; });
}

TEST(LinearCrossEntropyTest, D8IgnoredTokensGiveExactZerosEvenWhenNotFinite) {
  Problem<BF16, float> p({33, 16, 1003}, 1e-4f);
  std::fill(p.labels.begin(), p.labels.end(), -1);
  for (int row : {3, 7, 32}) p.x[row * 16] = ToBF16(std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(Call(p.Forward(), 2).ok());
  ASSERT_TRUE(Call(p.Backward(), 2).ok());
  EXPECT_TRUE(AllZero(p.loss) && AllZero(p.normaliser) && AllZero(p.x_grad) && AllZero(p.w_grad));
}

TEST(LinearCrossEntropyTest, D8NaNUnderAnIgnoredLabelReachesNothing) {
  Problem<float, float> clean({33, 16, 1003}), dirty({33, 16, 1003});
  for (auto* p : {&clean, &dirty}) p->labels[5] = -1;
  for (int h = 0; h < 16; ++h) dirty.x[5 * 16 + h] = std::numeric_limits<float>::quiet_NaN();
  dirty.loss_grad[5] = std::numeric_limits<float>::infinity();
  for (auto* p : {&clean, &dirty}) {
    ASSERT_TRUE(Call(p->Forward(), 2).ok());
    ASSERT_TRUE(Call(p->Backward(), 2).ok());
  }
  EXPECT_TRUE(SameBits(clean.loss, dirty.loss));
  EXPECT_TRUE(SameBits(clean.x_grad, dirty.x_grad));
  EXPECT_TRUE(SameBits(clean.w_grad, dirty.w_grad));
}

TEST(LinearCrossEntropyTest, NaNOfALabelledTokenIsItsOwn) {
  Problem<float, float> p({8, 16, 100});
  std::fill(p.labels.begin(), p.labels.end(), 4);
  p.x[2 * 16] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(Call(p.Forward(), 2).ok());
  for (int t = 0; t < 8; ++t) EXPECT_EQ(std::isnan(p.loss[t]), t == 2) << t;
}

TEST(LinearCrossEntropyTest, AnotherIgnoreIndex) {
  Problem<float, float> p({12, 4, 30});
  std::fill(p.labels.begin(), p.labels.end(), 3);
  p.labels[1] = p.labels[2] = 0;
  LinearCrossEntropyArgs args = p.Forward();
  args.ignore_index = 0;
  ASSERT_TRUE(Call(args, 2).ok());
  for (int t = 0; t < 12; ++t) EXPECT_EQ(p.loss[t] == 0, t == 1 || t == 2) << t;
}

TEST(LinearCrossEntropyTest, D8ErrorsNameArgumentAndRuleAndTouchNothing) {
  Problem<float, float> p({6, 8, 40});
  std::fill(p.labels.begin(), p.labels.end(), 1);
  const auto expect = [&](const LinearCrossEntropyArgs& args, StatusCode code, const char* text) {
    const Status status = Call(args, 1);
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  p.labels[4] = 40;
  expect(p.Forward(), StatusCode::kOutOfRange,
         "linear_cross_entropy: labels[4]=40; must be in [0, 40) or ignore_index=-1");
  EXPECT_EQ(Call(p.Backward(), 1).code(), StatusCode::kOutOfRange);
  p.labels[4] = -2;
  expect(p.Forward(), StatusCode::kOutOfRange, "labels[4]=-2");
  p.labels[4] = 0;
  LinearCrossEntropyArgs args = p.Forward();
  args.w = args.x;
  expect(args, StatusCode::kInvalidArgument, "x is f32[6,8] and w f32[6,8]");
  args = p.Forward();
  args.loss = TensorView(p.loss.data(), {5});
  expect(args, StatusCode::kInvalidArgument, "loss is f32[5]; must be f32[6]");
  for (float value : p.loss) EXPECT_EQ(value, 99);
  for (float value : p.x_grad) EXPECT_EQ(value, 99);
}

}  // namespace
}  // namespace anabranch
