// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/dtype.h"

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

}  // namespace
}  // namespace anabranch
