// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Slots that travel instead of rows: what arrives are the rows that plain Dispatch brings when each
// token's row has been encoded and decoded before.
#include "comm/wire/wire.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/executor.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/random_case.h"
#include "ops/quantize/wire/wire_rows.h"

namespace anabranch::expert_parallel {
namespace {

constexpr int64_t kHidden = 70;
constexpr float kPoison = -77.0f;

std::vector<BF16> Values(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<BF16> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = ToBF16(std::ldexp(normal(random), static_cast<int>(i / 32) % 9));
  }
  return values;
}

struct Rank {
  std::vector<int32_t> words;
  std::vector<BF16> x, rows, expected;
  std::vector<uint8_t> sent, slots;
};

// All waves of one case, each in buffers of its own, the plain way and on the wire.
class Exchange {
 public:
  Exchange(const Shape& shape, unsigned seed) : case_(shape, seed), ranks_(shape.ranks) {
    for (int64_t r = 0; r < shape.ranks; ++r) {
      EXPECT_TRUE(case_.Fill(r, &ranks_[r].words).ok());
      ranks_[r].x = Values(case_.tokens(r) * kHidden, seed + static_cast<unsigned>(r));
      ranks_[r].sent.resize(case_.tokens(r) * kBytes);
      const TensorView sent(ranks_[r].sent.data(), {case_.tokens(r), kBytes});
      const TensorView x(ranks_[r].x.data(), {case_.tokens(r), kHidden});
      EXPECT_TRUE(EncodeRows({x, sent}, context_).ok());
      EXPECT_TRUE(DecodeRowsReference({sent, case_.tokens(r), x}).ok());
    }
  }

  void Check(int64_t wave, int64_t waves) {
    const int64_t capacity = case_.group().capacity;
    std::vector<DispatchArgs> plain, slots;
    for (Rank& rank : ranks_) {
      const int64_t tokens = static_cast<int64_t>(rank.x.size()) / kHidden;
      const ConstTensorView plan(rank.words.data(), {static_cast<int64_t>(rank.words.size())});
      rank.rows.assign(capacity * kHidden, ToBF16(kPoison));
      rank.expected = rank.rows;
      rank.slots.assign(capacity * kBytes, 0xee);
      plain.push_back({plan,
                       ConstTensorView(rank.x.data(), {tokens, kHidden}),
                       {},
                       TensorView(rank.expected.data(), {capacity, kHidden}),
                       {},
                       wave,
                       {waves}});
      slots.push_back({plan,
                       ConstTensorView(rank.sent.data(), {tokens, kBytes}),
                       {},
                       TensorView(rank.slots.data(), {capacity, kBytes}),
                       {},
                       wave,
                       {waves}});
    }
    Together(plain);
    Together(slots);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const TensorView rows(ranks_[r].rows.data(), {capacity, kHidden});
      ASSERT_TRUE(Decode({slots[r].plan, slots[r].rows, rows, wave, {waves}}, context_).ok());
      // Poison past the rows in use included.
      for (size_t i = 0; i < ranks_[r].rows.size(); ++i) {
        ASSERT_EQ(ranks_[r].rows[i].bits, ranks_[r].expected[i].bits) << i;
      }
    }
  }
  Rank& rank(int64_t r) { return ranks_[r]; }
  const Context& context() const { return context_; }

 private:
  static constexpr int64_t kBytes = WireBytes(kHidden);

  void Together(const std::vector<DispatchArgs>& args) {
    std::vector<const DispatchArgs*> pointers;
    for (const DispatchArgs& one : args) pointers.push_back(&one);
    ASSERT_TRUE(DispatchTogether(pointers, executor_).ok());
  }

  RandomCase case_;
  std::vector<Rank> ranks_;
  ThreadExecutor executor_{2};
  Context context_ = {&executor_, nullptr, 0};
};

TEST(WireTest, BringsTheRowsOfAPlainDispatchOfRoundedTokens) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    Exchange exchange({.ranks = 1 + seed % 4, .alignment = seed % 3 == 0 ? 16 : 1, .nowhere = 0.2},
                      seed);
    for (int64_t waves : {1, 2, 3}) {
      for (int64_t wave = 0; wave < waves; ++wave) exchange.Check(wave, waves);
    }
  }
}

TEST(WireTest, MisfitsAreNamed) {
  Exchange exchange({}, 3);
  Rank& rank = exchange.rank(0);
  const ConstTensorView plan(rank.words.data(), {static_cast<int64_t>(rank.words.size())});
  const TensorView rows(rank.rows.data(), {0, kHidden});
  const ConstTensorView slots(rank.slots.data(), {0, kHidden});
  EXPECT_EQ(Decode({plan, slots, rows}, exchange.context()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Decode({plan, slots, rows, 2, {2}}, exchange.context()).message(),
            "expert_parallel_decode: wave 2 of 2; must be in [0, waves), waves in [1, 64]");
  EXPECT_FALSE(Decode({slots, slots, rows}, exchange.context()).ok());
}

}  // namespace
}  // namespace anabranch::expert_parallel
