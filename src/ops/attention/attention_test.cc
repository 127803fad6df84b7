// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

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
  int64_t batch, length, heads, kv_heads, size, value_size;
};
enum class Segments { kAbsent, kPacked, kScattered, kAllPadding };

// Owns every array of a forward and a backward call.
template <typename T>
struct Problem {
  explicit Problem(const Shape& s, Segments segments = Segments::kAbsent, uint32_t seed = 1)
      : shape(s), random(seed) {
    query = Random(s.batch * s.length * s.heads * s.size);
    key = Random(s.batch * s.length * s.kv_heads * s.size);
    value = Random(s.batch * s.length * s.kv_heads * s.value_size);
    output_grad = Random(s.batch * s.length * s.heads * s.value_size);
    scale = 1.5f / std::sqrt(static_cast<float>(s.size));
    MakeSegments(segments);
    Clear();
  }

  std::vector<T> Random(int64_t count) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<T> values(count);
    for (T& x : values) x = FromFloat<T>(normal(random));
    return values;
  }

  // Packed: documents of random lengths numbered from 1, then padding, as a data loader makes them.
  void MakeSegments(Segments segments) {
    if (segments == Segments::kAbsent) return;
    for (int64_t b = 0; b < shape.batch; ++b) {
      int32_t id = 1;
      for (int64_t s = 0; s < shape.length; ++s) {
        if (random() % 40 == 0) ++id;
        const bool padding = segments == Segments::kAllPadding || s >= shape.length * 7 / 8;
        const bool scattered = segments == Segments::kScattered;
        ids.push_back(scattered ? static_cast<int32_t>(random() % 3) - 1 : padding ? 0 : id);
      }
    }
  }

  // Fills every output with a value that no call leaves behind.
  void Clear() {
    output.assign(output_grad.size(), FromFloat<T>(99));
    log_sum_exp.assign(shape.batch * shape.heads * shape.length, 99);
    query_grad.assign(query.size(), FromFloat<T>(99));
    key_grad.assign(key.size(), FromFloat<T>(99));
    value_grad.assign(value.size(), FromFloat<T>(99));
  }

  template <typename Args>
  void SetInputs(Args& a) {
    const auto [batch, length, heads, kv_heads, size, value_size] = shape;
    a.scale = scale;
    a.causal = causal;
    a.query = ConstTensorView(query.data(), {batch, length, heads, size});
    a.key = ConstTensorView(key.data(), {batch, length, kv_heads, size});
    a.value = ConstTensorView(value.data(), {batch, length, kv_heads, value_size});
    if (!ids.empty()) a.segment_ids = ConstTensorView(ids.data(), {batch, length});
  }
  AttentionArgs Forward() {
    AttentionArgs a;
    SetInputs(a);
    a.output =
        TensorView(output.data(), {shape.batch, shape.length, shape.heads, shape.value_size});
    a.log_sum_exp = TensorView(log_sum_exp.data(), {shape.batch, shape.heads, shape.length});
    return a;
  }
  AttentionGradArgs Backward() {
    AttentionGradArgs a;
    SetInputs(a);
    const auto [batch, length, heads, kv_heads, size, value_size] = shape;
    a.output = ConstTensorView(output.data(), {batch, length, heads, value_size});
    a.log_sum_exp = ConstTensorView(log_sum_exp.data(), {batch, heads, length});
    a.output_grad = ConstTensorView(output_grad.data(), {batch, length, heads, value_size});
    a.query_grad = TensorView(query_grad.data(), {batch, length, heads, size});
    a.key_grad = TensorView(key_grad.data(), {batch, length, kv_heads, size});
    a.value_grad = TensorView(value_grad.data(), {batch, length, kv_heads, value_size});
    return a;
  }

  const Shape shape;
  std::mt19937 random;
  float scale;
  bool causal = true;
  std::vector<T> query, key, value, output_grad, output, query_grad, key_grad, value_grad;
  std::vector<float> log_sum_exp;
  std::vector<int32_t> ids;
};

Status Call(const AttentionArgs& args, int threads) {
  return WithPoisonedScratch(AttentionScratchBytes(args, threads), threads,
                             [&](Context& context) { return Attention(args, context); });
}
Status Call(const AttentionGradArgs& args, int threads) {
  return WithPoisonedScratch(AttentionGradScratchBytes(args, threads), threads,
                             [&](Context& context) { return AttentionGrad(args, context); });
}

// ---- the oracle itself ------------------------------------------------------------------------

TEST(AttentionReferenceTest, EqualScoresGiveTheMeanOfWhatIsSeen) {
  Problem<float> p({1, 5, 1, 1, 2, 1});
  std::fill(p.query.begin(), p.query.end(), 0.0f);
  p.value = {1, 2, 3, 4, 100};
  p.ids = {1, 1, 2, 2, 0};
  ASSERT_TRUE(AttentionReference(p.Forward()).ok());
  EXPECT_EQ(p.output, (std::vector<float>{1, 1.5f, 3, 3.5f, 0}));
  EXPECT_FLOAT_EQ(p.log_sum_exp[1], std::log(2.0f));
  EXPECT_EQ(p.log_sum_exp[4], -std::numeric_limits<float>::infinity());
  p.causal = false;
  ASSERT_TRUE(AttentionReference(p.Forward()).ok());
  EXPECT_EQ(p.output, (std::vector<float>{1.5f, 1.5f, 3.5f, 3.5f, 0}));
}

TEST(AttentionReferenceTest, GradientIsTheSlopeOfTheOutput) {
  Problem<float> p({2, 6, 4, 2, 3, 2}, Segments::kScattered);
  ASSERT_TRUE(AttentionGradReference(p.Backward()).ok());
  const auto loss = [&] {
    EXPECT_TRUE(AttentionReference(p.Forward()).ok());
    double sum = 0;
    for (size_t i = 0; i < p.output.size(); ++i) sum += double{p.output[i]} * p.output_grad[i];
    return sum;
  };
  // Central differences: the third derivative (below 100) times h^2 / 6, and f32 outputs that carry
  // 48 x 2^-24 x 4 over 2 h.
  constexpr float kStep = 1.0f / 128;
  constexpr double kBound = 100.0 * kStep * kStep / 6 + 48 * 0x1p-24 * 4 / (2 * kStep);
  const auto check = [&](std::vector<float>& x, const std::vector<float>& grad) {
    for (size_t i = 0; i < x.size(); ++i) {
      const float kept = x[i];
      x[i] = kept + kStep;
      const double above = loss(), at_above = x[i];
      x[i] = kept - kStep;
      const double slope = (above - loss()) / (at_above - x[i]);
      x[i] = kept;
      ASSERT_NEAR(grad[i], slope, kBound) << i;
    }
  };
  check(p.query, p.query_grad);
  check(p.key, p.key_grad);
  check(p.value, p.value_grad);
}

// ---- the operation ----------------------------------------------------------------------------

template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<T>& want, double bound,
                const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const float x = ToFloat(got[i]), y = ToFloat(want[i]);
    if (x == y) continue;  // infinities
    ASSERT_NEAR(x, y, bound) << what << " element " << i;
  }
}

template <typename T>
double Largest(const std::vector<T>& values) {
  double largest = 0;
  for (const T& value : values) largest = std::max<double>(largest, std::abs(ToFloat(value)));
  return largest;
}

// Errors of f32 scores in units of 1: (size + 2) roundings of a sum of products below |q| |k|.
template <typename T>
double ScoreError(const Problem<T>& p) {
  const double size = static_cast<double>(p.shape.size);
  return p.scale * size * Largest(p.query) * Largest(p.key) * (size + 3) * 0x1p-24;
}

template <typename T>
void CheckForward(const Shape& shape, Segments segments, bool causal) {
  const double unit = sizeof(T) == 2 ? 1.0 / 256 : 0x1p-23;
  Problem<T> fast(shape, segments), exact(shape, segments);
  fast.causal = exact.causal = causal;
  ASSERT_TRUE(AttentionReference(exact.Forward()).ok());
  const Status status = Call(fast.Forward(), 2);
  ASSERT_TRUE(status.ok()) << status.message();
  // A share is off by the error of its score, relatively, and by its rounding; shares add up to 1.
  // Sums of S terms in f32, and the result's own rounding.
  const double share = 2 * ScoreError(fast) + unit + (shape.length + 8) * 0x1p-23;
  ExpectNear(fast.output, exact.output, Largest(fast.value) * (share + unit), "output");
  const double largest = std::log(1.0 + shape.length) +
                         fast.scale * shape.size * Largest(fast.query) * Largest(fast.key);
  ExpectNear(fast.log_sum_exp, exact.log_sum_exp,
             ScoreError(fast) + (shape.length + 8) * 0x1p-23 + largest * 0x1p-23, "log_sum_exp");
}

// The largest sum of the shares that any key gets: d(sum of outputs) / d(value).
template <typename T>
double MostSeen(Problem<T> p) {
  std::fill(p.output_grad.begin(), p.output_grad.end(), FromFloat<T>(1));
  EXPECT_TRUE(AttentionGradReference(p.Backward()).ok());
  return Largest(p.value_grad);
}

// The gradient of a score is share * (share_grad - mean), where both of the latter are below `most`
// and rounded values went into them; shares are off as in the forward pass. A query's shares add up
// to 1, a key's to MostSeen. f32 sums: of D, Dv and S terms.
template <typename T>
void CheckBackward(const Shape& shape, Segments segments, bool causal, int threads) {
  const double unit = sizeof(T) == 2 ? 1.0 / 256 : 0x1p-23;
  Problem<T> fast(shape, segments), exact(shape, segments);
  fast.causal = exact.causal = causal;
  ASSERT_TRUE(AttentionReference(exact.Forward()).ok());
  ASSERT_TRUE(AttentionGradReference(exact.Backward()).ok());
  ASSERT_TRUE(Call(fast.Forward(), threads).ok());
  const Status status = Call(fast.Backward(), threads);
  ASSERT_TRUE(status.ok()) << status.message();
  const double most =
      std::sqrt(1.0 * shape.value_size) * Largest(fast.output_grad) * Largest(fast.value);
  const double sums = (shape.length + shape.size + shape.value_size + 8) * 0x1p-23;
  const double share = 2 * ScoreError(fast) + unit + sums;
  const double grad = fast.scale * most * (2 * (share + unit) + unit + sums);
  const double seen = MostSeen(exact);
  ExpectNear(fast.query_grad, exact.query_grad, grad * Largest(fast.key), "query_grad");
  ExpectNear(fast.key_grad, exact.key_grad, grad * Largest(fast.query) * seen, "key_grad");
  ExpectNear(fast.value_grad, exact.value_grad, (share + unit) * Largest(fast.output_grad) * seen,
             "value_grad");
}

constexpr Shape kShapes[] = {
    {2, 130, 4, 2, 24, 16},   // grouped heads, tails everywhere
    {1, 1, 1, 1, 1, 1},       // nothing but one
    {1, 97, 3, 3, 7, 5},      // odd sizes: half-filled words
    {1, 200, 2, 1, 96, 64},   // multi-head latent attention
    {1, 65, 2, 2, 130, 129},  // sizes past a panel
    {0, 16, 2, 1, 8, 8},      // no sequences
    {2, 0, 2, 1, 8, 8},       // no positions
};
constexpr Segments kSegments[] = {Segments::kAbsent, Segments::kPacked, Segments::kScattered,
                                  Segments::kAllPadding};

TEST(AttentionTest, MatchesReferenceOnEveryShapeAndMask) {
  for (const Shape& shape : kShapes) {
    for (Segments segments : kSegments) {
      for (bool causal : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << shape.length << " positions of size " << shape.size << ", segments "
                     << static_cast<int>(segments) << (causal ? ", causal" : ""));
        CheckForward<float>(shape, segments, causal);
        CheckForward<BF16>(shape, segments, causal);
        CheckBackward<float>(shape, segments, causal, 2);
        CheckBackward<BF16>(shape, segments, causal, 2);
      }
    }
  }
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// One worker takes whole heads; with seven, heads are split into ranges of keys and of queries.
TEST(AttentionTest, BitsDoNotDependOnTheNumberOfThreads) {
  for (Segments segments : {Segments::kAbsent, Segments::kPacked, Segments::kScattered}) {
    const Shape shape = {1, 501, 4, 2, 40, 24};
    Problem<BF16> one(shape, segments);
    ASSERT_TRUE(Call(one.Forward(), 1).ok());
    ASSERT_TRUE(Call(one.Backward(), 1).ok());
    for (int threads : {2, 3, 7}) {
      Problem<BF16> many(shape, segments);
      ASSERT_TRUE(Call(many.Forward(), threads).ok());
      ASSERT_TRUE(Call(many.Backward(), threads).ok());
      EXPECT_TRUE(SameBits(one.output, many.output)) << threads;
      EXPECT_TRUE(SameBits(one.log_sum_exp, many.log_sum_exp)) << threads;
      EXPECT_TRUE(SameBits(one.query_grad, many.query_grad)) << threads;
      EXPECT_TRUE(SameBits(one.key_grad, many.key_grad)) << threads;
      EXPECT_TRUE(SameBits(one.value_grad, many.value_grad)) << threads;
    }
  }
}

TEST(AttentionTest, LongSequencesMatchReference) {
  CheckForward<BF16>({1, 2048, 1, 1, 8, 8}, Segments::kPacked, true);
  CheckBackward<BF16>({1, 2048, 1, 1, 8, 8}, Segments::kPacked, true, 2);
  CheckBackward<float>({1, 1100, 2, 1, 8, 8}, Segments::kAbsent, true, 7);
}

TEST(AttentionTest, PaddingGetsExactZeros) {
  Problem<float> p({1, 300, 2, 1, 16, 8}, Segments::kPacked);
  ASSERT_TRUE(Call(p.Forward(), 2).ok());
  ASSERT_TRUE(Call(p.Backward(), 2).ok());
  for (int64_t s = 0; s < 300; ++s) {
    const bool padding = p.ids[s] == 0;
    EXPECT_EQ(p.log_sum_exp[s] == -std::numeric_limits<float>::infinity(), padding);
    for (int i = 0; padding && i < 2 * 8; ++i) ASSERT_EQ(p.output[s * 16 + i], 0);
    for (int i = 0; padding && i < 2 * 16; ++i) ASSERT_EQ(p.query_grad[s * 32 + i], 0);
    for (int i = 0; padding && i < 16; ++i) ASSERT_EQ(p.key_grad[s * 16 + i], 0);
    for (int i = 0; padding && i < 8; ++i) ASSERT_EQ(p.value_grad[s * 8 + i], 0);
  }
}

TEST(AttentionTest, NaNShowsWhereItIsSeen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Problem<float> p({1, 100, 1, 1, 4, 4});
  p.query[20 * 4] = nan;
  p.key[50 * 4 + 1] = nan;
  ASSERT_TRUE(Call(p.Forward(), 2).ok());
  for (int64_t s = 0; s < 100; ++s) {
    EXPECT_EQ(std::isnan(p.output[s * 4]), s == 20 || s >= 50) << s;
    EXPECT_EQ(std::isnan(p.log_sum_exp[s]), s == 20 || s >= 50) << s;
  }
}

TEST(AttentionTest, ScoresOfAnySizeStayFinite) {
  Problem<float> p({1, 90, 1, 1, 4, 4});
  for (float& x : p.query) x *= 1e18f;
  for (float& x : p.key) x *= 1e18f;
  for (float scale : {1.0f, -1.0f, 0.0f}) {
    p.scale = scale;
    ASSERT_TRUE(Call(p.Forward(), 1).ok());
    ASSERT_TRUE(Call(p.Backward(), 1).ok());
    for (float x : p.output) ASSERT_TRUE(std::isfinite(x)) << scale;
    for (float x : p.value_grad) ASSERT_TRUE(std::isfinite(x)) << scale;
  }
}

TEST(AttentionTest, ErrorsNameArgumentAndRuleAndTouchNothing) {
  Problem<float> p({1, 6, 4, 2, 8, 4});
  AttentionArgs args = p.Forward();
  args.key = args.value;
  Status status = Call(args, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "attention: key is f32[1,6,2,4]; must be f32[1,6,2,8]");

  args = p.Forward();
  args.key = ConstTensorView(p.key.data(), {1, 6, 3, 8});
  EXPECT_NE(Call(args, 1).message().find("multiple of key heads"), std::string::npos);

  const int32_t ids[5] = {};
  args = p.Forward();
  args.segment_ids = ConstTensorView(ids, {1, 5});
  EXPECT_EQ(Call(args, 1).message(), "attention: segment_ids is i32[1,5]; must be i32[1,6]");

  AttentionGradArgs grad = p.Backward();
  grad.log_sum_exp = ConstTensorView(p.log_sum_exp.data(), {1, 6, 4});
  EXPECT_EQ(Call(grad, 1).message(), "attention: log_sum_exp is f32[1,6,4]; must be f32[1,4,6]");

  SerialExecutor executor;
  Context nothing{&executor, nullptr, 0};
  EXPECT_NE(Attention(p.Forward(), nothing).message().find("scratch is 0 bytes"),
            std::string::npos);
  for (float x : p.output) EXPECT_EQ(x, 99);
}

}  // namespace
}  // namespace anabranch
