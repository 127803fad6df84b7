// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/moe_ffn/moe_ffn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/poisoned_scratch.h"
#include "ops/pack_experts/pack_experts.h"

namespace anabranch {
namespace {

using tile::Activation;

struct Shape {
  int64_t tokens, hidden, width, experts, k;
};

// A routing of T tokens to k distinct experts each.
enum class Skew { kUniform, kOneExpert, kSomeEmpty, kSomeUnrouted, kNothing };

// Owns every array of a forward and a backward call.
template <typename T, typename W>
struct Problem {
  Problem(const Shape& s, Skew skew, uint32_t seed) : shape(s), random(seed) {
    x = Random<T>(s.tokens * s.hidden, 1);
    y_grad = Random<T>(s.tokens * s.hidden, 1);
    const float scale = 1 / std::sqrt(static_cast<float>(s.hidden));
    w_gate = Random<W>(s.experts * s.hidden * s.width, scale);
    w_up = Random<W>(s.experts * s.hidden * s.width, scale);
    w_down = Random<W>(s.experts * s.width * s.hidden, scale);
    weights = Random<float>(s.tokens * s.k, 1);
    Route(skew);
    saved = MoeFfnSavedColumns(kDTypeOf<T>, s.width);
    Clear();
  }

  template <typename V>
  std::vector<V> Random(int64_t count, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<V> values(count);
    for (V& value : values) value = FromFloat<V>(normal(random));
    return values;
  }

  void Route(Skew skew) {
    const auto [tokens, hidden, width, experts, k] = shape;
    std::vector<std::pair<int32_t, int64_t>> rows;  // (expert, slot), stable by token
    std::vector<int32_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t usable = skew == Skew::kSomeEmpty ? std::max(k, experts / 2) : experts;
      std::shuffle(order.begin(), order.begin() + usable, random);
      for (int64_t s = 0; s < k; ++s) {
        const bool dropped = skew == Skew::kNothing || (skew == Skew::kOneExpert && s > 0) ||
                             (skew == Skew::kSomeUnrouted && random() % 3 == 0);
        if (!dropped) rows.emplace_back(skew == Skew::kOneExpert ? 0 : order[s], t * k + s);
      }
    }
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    offsets.assign(experts + 1, 0);
    row_token.assign(tokens * k, -1);
    slot_row.assign(tokens * k, -1);
    for (size_t row = 0; row < rows.size(); ++row) {
      ++offsets[rows[row].first + 1];
      row_token[row] = static_cast<int32_t>(rows[row].second / k);
      slot_row[rows[row].second] = static_cast<int32_t>(row);
    }
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  }

  // Fills every output with a value that no call leaves behind.
  void Clear() {
    y.assign(x.size(), FromFloat<T>(99));
    gate_up.assign(shape.tokens * shape.k * 2 * saved, FromFloat<T>(0));
    x_grad.assign(x.size(), FromFloat<T>(99));
    weights_grad.assign(weights.size(), 99);
    w_gate_grad.assign(w_gate.size(), FromFloat<W>(99));
    w_up_grad.assign(w_up.size(), FromFloat<W>(99));
    w_down_grad.assign(w_down.size(), FromFloat<W>(99));
  }

  template <typename Args>
  void SetInputs(Args& a, Activation activation) {
    const auto [tokens, hidden, width, experts, k] = shape;
    a.activation = activation;
    a.x = ConstTensorView(x.data(), {tokens, hidden});
    a.weights = ConstTensorView(weights.data(), {tokens, k});
    a.w_gate = ConstTensorView(w_gate.data(), {experts, hidden, width});
    a.w_up = ConstTensorView(w_up.data(), {experts, hidden, width});
    a.w_down = ConstTensorView(w_down.data(), {experts, width, hidden});
    a.group_offsets = ConstTensorView(offsets.data(), kDTypeOf<int32_t>, {experts + 1});
    a.row_token = ConstTensorView(row_token.data(), kDTypeOf<int32_t>, {tokens * k});
    a.slot_row = ConstTensorView(slot_row.data(), kDTypeOf<int32_t>, {tokens, k});
  }
  MoeFfnArgs Forward(Activation activation) {
    MoeFfnArgs a;
    SetInputs(a, activation);
    a.y = TensorView(y.data(), {shape.tokens, shape.hidden});
    a.gate_up = TensorView(gate_up.data(), {shape.tokens * shape.k, 2 * saved});
    return a;
  }
  MoeFfnGradArgs Backward(Activation activation) {
    MoeFfnGradArgs a;
    SetInputs(a, activation);
    const auto [tokens, hidden, width, experts, k] = shape;
    a.gate_up = TensorView(gate_up.data(), {tokens * k, 2 * saved});
    a.y_grad = ConstTensorView(y_grad.data(), {tokens, hidden});
    a.x_grad = TensorView(x_grad.data(), {tokens, hidden});
    a.weights_grad = TensorView(weights_grad.data(), {tokens, k});
    a.w_gate_grad = TensorView(w_gate_grad.data(), {experts, hidden, width});
    a.w_up_grad = TensorView(w_up_grad.data(), {experts, hidden, width});
    a.w_down_grad = TensorView(w_down_grad.data(), {experts, width, hidden});
    return a;
  }

  const Shape shape;
  std::mt19937 random;
  int64_t saved = 0;
  std::vector<T> x, y_grad, y, gate_up, x_grad;
  std::vector<W> w_gate, w_up, w_down, w_gate_grad, w_up_grad, w_down_grad;
  std::vector<float> weights, weights_grad;
  std::vector<int32_t> offsets, row_token, slot_row;
};

Status Call(const MoeFfnArgs& args, int threads) {
  return WithPoisonedScratch(MoeFfnScratchBytes(args, threads), threads,
                             [&](Context& context) { return MoeFfn(args, context); });
}
Status Call(const MoeFfnGradArgs& args, int threads) {
  return WithPoisonedScratch(MoeFfnGradScratchBytes(args, threads), threads,
                             [&](Context& context) { return MoeFfnGrad(args, context); });
}

// Both sides round to T in the same places, from sums that differ in the last bits of f32, so a
// value near a tie may fall the other way. Up to five roundings lie on a path (gate, hidden or its
// gradient, row, result, product of two of them), each at most one unit of T of the tensor's
// largest value; f32 adds (K + 1) eps for the longest sum.
template <typename V>
void ExpectClose(const std::vector<V>& got, const std::vector<V>& want, bool bf16, int64_t longest,
                 const std::string& what) {
  double largest = 0;
  for (const V& value : want) largest = std::max<double>(largest, std::abs(ToFloat(value)));
  const double unit = bf16 ? 1.0 / 256 : 0x1p-23;
  const double bound = largest * (5 * unit + (longest + 1) * 0x1p-23);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(ToFloat(got[i]), ToFloat(want[i]), bound) << what << " element " << i;
  }
}

template <typename T, typename W>
void CheckAgainstReference(const Shape& shape, Skew skew, Activation activation) {
  constexpr bool kBf16 = sizeof(T) == 2;
  Problem<T, W> fast(shape, skew, 7), exact(shape, skew, 7);
  const int64_t longest = std::max({shape.hidden, 2 * shape.width, shape.tokens});
  ASSERT_TRUE(MoeFfnReference(exact.Forward(activation)).ok());
  const Status forward = Call(fast.Forward(activation), 2);
  ASSERT_TRUE(forward.ok()) << forward.message();
  ExpectClose(fast.y, exact.y, kBf16, longest, "y");
  ExpectClose(fast.gate_up, exact.gate_up, kBf16, longest, "gate_up");
  fast.gate_up = exact.gate_up;
  ASSERT_TRUE(MoeFfnGradReference(exact.Backward(activation)).ok());
  const Status backward = Call(fast.Backward(activation), 2);
  ASSERT_TRUE(backward.ok()) << backward.message();
  ExpectClose(fast.x_grad, exact.x_grad, kBf16, longest, "x_grad");
  ExpectClose(fast.weights_grad, exact.weights_grad, kBf16, longest, "weights_grad");
  ExpectClose(fast.w_gate_grad, exact.w_gate_grad, kBf16, longest, "w_gate_grad");
  ExpectClose(fast.w_up_grad, exact.w_up_grad, kBf16, longest, "w_up_grad");
  ExpectClose(fast.w_down_grad, exact.w_down_grad, kBf16, longest, "w_down_grad");
}

constexpr Shape kShapes[] = {
    {37, 64, 32, 8, 2},    // everything whole
    {37, 66, 34, 8, 3},    // tails in every panel
    {5, 7, 3, 4, 2},       // odd sizes: half-filled words
    {1, 130, 65, 6, 6},    // one token, all experts
    {200, 16, 100, 3, 1},  // long groups
    {9, 16, 514, 3, 2},    // gate and up too wide to share a block of their gradients
    {0, 32, 16, 4, 2},     // no tokens
};
constexpr Skew kSkews[] = {Skew::kUniform, Skew::kOneExpert, Skew::kSomeEmpty, Skew::kSomeUnrouted,
                           Skew::kNothing};

TEST(MoeFfnTest, MatchesReferenceOnEveryShapeAndRouting) {
  for (const Shape& shape : kShapes) {
    for (Skew skew : kSkews) {
      CheckAgainstReference<float, float>(shape, skew, Activation::kSwiglu);
      CheckAgainstReference<BF16, BF16>(shape, skew, Activation::kSwiglu);
      CheckAgainstReference<BF16, float>(shape, skew, Activation::kSwiglu);
    }
  }
}

TEST(MoeFfnTest, MatchesReferenceForEveryActivation) {
  for (Activation activation :
       {Activation::kSwiglu, Activation::kGeglu, Activation::kReglu, Activation::kClampedSwiglu}) {
    CheckAgainstReference<float, float>({40, 33, 20, 5, 2}, Skew::kUniform, activation);
    CheckAgainstReference<BF16, BF16>({40, 34, 20, 5, 2}, Skew::kUniform, activation);
  }
}

template <typename V>
bool SameBits(const std::vector<V>& a, const std::vector<V>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(V)) == 0);
}

TEST(MoeFfnTest, BitsDoNotDependOnTheNumberOfThreads) {
  const Shape shape = {1600, 130, 70, 9, 3};
  for (Skew skew : {Skew::kUniform, Skew::kOneExpert}) {
    Problem<BF16, float> one(shape, skew, 3);
    ASSERT_TRUE(Call(one.Forward(Activation::kSwiglu), 1).ok());
    ASSERT_TRUE(Call(one.Backward(Activation::kSwiglu), 1).ok());
    for (int threads : {2, 3, 7}) {
      Problem<BF16, float> many(shape, skew, 3);
      ASSERT_TRUE(Call(many.Forward(Activation::kSwiglu), threads).ok());
      ASSERT_TRUE(Call(many.Backward(Activation::kSwiglu), threads).ok());
      EXPECT_TRUE(SameBits(one.y, many.y)) << threads;
      EXPECT_TRUE(SameBits(one.gate_up, many.gate_up)) << threads;
      EXPECT_TRUE(SameBits(one.x_grad, many.x_grad)) << threads;
      EXPECT_TRUE(SameBits(one.weights_grad, many.weights_grad)) << threads;
      EXPECT_TRUE(SameBits(one.w_gate_grad, many.w_gate_grad)) << threads;
      EXPECT_TRUE(SameBits(one.w_up_grad, many.w_up_grad)) << threads;
      EXPECT_TRUE(SameBits(one.w_down_grad, many.w_down_grad)) << threads;
    }
  }
}

TEST(MoeFfnTest, SavingChangesNoBit) {
  Problem<BF16, BF16> saving({50, 64, 40, 6, 2}, Skew::kUniform, 5);
  Problem<BF16, BF16> plain({50, 64, 40, 6, 2}, Skew::kUniform, 5);
  MoeFfnArgs args = plain.Forward(Activation::kSwiglu);
  args.gate_up = TensorView();
  ASSERT_TRUE(Call(args, 2).ok());
  ASSERT_TRUE(Call(saving.Forward(Activation::kSwiglu), 2).ok());
  EXPECT_TRUE(SameBits(saving.y, plain.y));
}

// Panels of a problem's weights.
struct Panels {
  template <typename W>
  explicit Panels(const Problem<BF16, W>& p) {
    const int64_t experts = p.shape.experts, hidden = p.shape.hidden, width = p.shape.width;
    const auto make = [&](ExpertPanel kind, std::vector<BF16>* panels) {
      const ExpertPanelShape shape = ShapeOf(kind, DType::kBF16, hidden, width);
      panels->resize(experts * shape.panels * 2 * shape.panel_words());
      return TensorView(panels->data(), {experts, shape.panels, 2 * shape.words, 64});
    };
    PackExpertsArgs args;
    args.w_gate = ConstTensorView(p.w_gate.data(), {experts, hidden, width});
    args.w_up = ConstTensorView(p.w_up.data(), {experts, hidden, width});
    args.w_down = ConstTensorView(p.w_down.data(), {experts, width, hidden});
    args.packed = {make(ExpertPanel::kGateUp, &gate_up), make(ExpertPanel::kDown, &down),
                   make(ExpertPanel::kDownTransposed, &down_transposed),
                   make(ExpertPanel::kGateUpTransposed, &gate_up_transposed)};
    PackExpertsReference(args);
    views = {args.packed.gate_up, args.packed.down, args.packed.down_transposed,
             args.packed.gate_up_transposed};
  }
  std::vector<BF16> gate_up, down, down_transposed, gate_up_transposed;
  PackedExperts views;
};

template <typename W>
void CheckPackedEqualsPlain(const Shape& shape) {
  Problem<BF16, W> plain(shape, Skew::kUniform, 13), packed(shape, Skew::kUniform, 13);
  const Panels panels(packed);
  MoeFfnArgs forward = packed.Forward(Activation::kSwiglu);
  forward.packed = panels.views;
  ASSERT_TRUE(Call(plain.Forward(Activation::kSwiglu), 2).ok());
  const Status status = Call(forward, 2);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(SameBits(plain.y, packed.y));
  EXPECT_TRUE(SameBits(plain.gate_up, packed.gate_up));
  MoeFfnGradArgs backward = packed.Backward(Activation::kSwiglu);
  backward.packed = panels.views;
  ASSERT_TRUE(Call(plain.Backward(Activation::kSwiglu), 2).ok());
  ASSERT_TRUE(Call(backward, 2).ok());
  EXPECT_TRUE(SameBits(plain.x_grad, packed.x_grad));
  EXPECT_TRUE(SameBits(plain.weights_grad, packed.weights_grad));
  EXPECT_TRUE(SameBits(plain.w_gate_grad, packed.w_gate_grad));
  EXPECT_TRUE(SameBits(plain.w_up_grad, packed.w_up_grad));
  EXPECT_TRUE(SameBits(plain.w_down_grad, packed.w_down_grad));
}

TEST(MoeFfnTest, PackedPanelsChangeNoBit) {
  for (const Shape& shape : kShapes) {
    CheckPackedEqualsPlain<BF16>(shape);
    CheckPackedEqualsPlain<float>(shape);
  }
}

TEST(MoeFfnTest, PanelsThatDoNotFitAreNamed) {
  Problem<BF16, BF16> p({6, 66, 34, 3, 2}, Skew::kUniform, 1);
  const Panels panels(p);
  MoeFfnArgs args = p.Forward(Activation::kSwiglu);
  args.packed.gate_up = panels.views.gate_up;
  args.packed.down = panels.views.gate_up;
  const Status status = Call(args, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("moe_ffn: packed down is bf16[3,2,66,64]; must be bf16[3,2,34,"),
            std::string::npos)
      << status.message();
  Problem<float, float> wide({6, 66, 34, 3, 2}, Skew::kUniform, 1);
  args = wide.Forward(Activation::kSwiglu);
  args.packed = panels.views;
  EXPECT_NE(Call(args, 1).message().find("must be bf16 with packed experts"), std::string::npos);
}

TEST(MoeFfnTest, EmptyExpertsGetExactZeroGradients) {
  Problem<float, float> p({20, 48, 24, 6, 1}, Skew::kOneExpert, 11);
  ASSERT_TRUE(Call(p.Forward(Activation::kSwiglu), 2).ok());
  ASSERT_TRUE(Call(p.Backward(Activation::kSwiglu), 2).ok());
  for (size_t i = 48 * 24; i < p.w_gate_grad.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(p.w_gate_grad[i]), 0u);
    ASSERT_EQ(std::bit_cast<uint32_t>(p.w_up_grad[i]), 0u);
    ASSERT_EQ(std::bit_cast<uint32_t>(p.w_down_grad[i]), 0u);
  }
}

TEST(MoeFfnTest, ErrorsNameArgumentAndRuleAndTouchNothing) {
  Problem<float, float> p({6, 8, 4, 3, 2}, Skew::kUniform, 1);
  MoeFfnArgs args = p.Forward(Activation::kSwiglu);
  args.w_down = args.w_gate;
  Status status = Call(args, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("moe_ffn: w_down is f32[3,8,4]"), std::string::npos)
      << status.message();

  std::vector<int32_t> bad = p.offsets;
  bad[1] = 100;
  args = p.Forward(Activation::kSwiglu);
  args.group_offsets = ConstTensorView(bad.data(), kDTypeOf<int32_t>, {4});
  status = Call(args, 1);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("group_offsets[1]=100"), std::string::npos) << status.message();

  std::vector<int32_t> tokens = p.row_token;
  tokens[2] = 6;
  args = p.Forward(Activation::kSwiglu);
  args.row_token = ConstTensorView(tokens.data(), kDTypeOf<int32_t>, {12});
  status = Call(args, 1);
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_NE(status.message().find("row_token[2]=6"), std::string::npos) << status.message();
  for (float value : p.y) EXPECT_EQ(value, 99);
}

}  // namespace
}  // namespace anabranch
