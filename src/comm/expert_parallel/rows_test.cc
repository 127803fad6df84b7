// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Dispatch and combine of all ranks at once, against the oracles.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/context.h"
#include "base/executor.h"
#include "comm/expert_parallel/combine.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/random_case.h"

namespace anabranch::expert_parallel {
namespace {

constexpr float kPoison = -77.0f;

// Whole cache lines, as XLA's buffers are: what streaming needs.
template <typename T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <typename U>
  explicit LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t count) {
    const int64_t bytes = RoundUp(static_cast<int64_t>(count * sizeof(T)), kCacheLineBytes);
    return static_cast<T*>(std::aligned_alloc(kCacheLineBytes, bytes));
  }
  void deallocate(T* block, size_t) { std::free(block); }
  bool operator==(const LineAllocator&) const { return true; }
};
template <typename T>
using LineVector = std::vector<T, LineAllocator<T>>;

// Whether both hold the same bits.
template <typename Vector>
bool Equal(const Vector& a, const Vector& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

// Buffers of all ranks. Capacity rows of each are between guard rows that nobody may touch.
template <typename T>
class World {
 public:
  World(RandomCase& c, int64_t hidden, unsigned seed) : hidden_(hidden) {
    std::mt19937 generator(seed);
    const Group& group = c.group();
    const int64_t capacity = group.capacity;
    for (int64_t rank = 0; rank < group.ranks; ++rank) {
      const int64_t tokens = c.tokens(rank);
      words_.emplace_back();
      status_ = c.Fill(rank, &words_.back());
      if (!status_.ok()) return;
      // Sixteenths up to 64: sums of up to 1,024 of them are exact in f32.
      x_.emplace_back();
      for (int64_t i = 0; i < tokens * hidden; ++i) {
        x_.back().push_back(FromFloat<T>(static_cast<float>(generator() % 255) / 16 - 8));
      }
      weights_.emplace_back();
      for (int64_t i = 0; i < tokens * group.topk; ++i) {
        weights_.back().push_back(static_cast<float>(generator() % 1000));
      }
      rows_.emplace_back((capacity + 2) * hidden, FromFloat<T>(kPoison));
      row_weights_.emplace_back(capacity + 2, kPoison);
      y_.emplace_back(tokens * hidden, FromFloat<T>(kPoison));
      home_.emplace_back(tokens * group.topk, kPoison);
    }
    for (int64_t rank = 0; rank < group.ranks; ++rank) {
      const int64_t tokens = c.tokens(rank);
      const ConstTensorView plan(words_[rank].data(), {static_cast<int64_t>(words_[rank].size())});
      const TensorView rows(rows_[rank].data() + hidden, {capacity, hidden});
      const TensorView row_weights(row_weights_[rank].data() + 1, {capacity});
      dispatch_.push_back({plan, ConstTensorView(x_[rank].data(), {tokens, hidden}),
                           ConstTensorView(weights_[rank].data(), {tokens, group.topk}), rows,
                           row_weights});
      combine_.push_back({plan, rows, row_weights, TensorView(y_[rank].data(), {tokens, hidden}),
                          TensorView(home_[rank].data(), {tokens, group.topk})});
    }
  }
  const Status& status() const { return status_; }
  std::vector<DispatchArgs>& dispatch() { return dispatch_; }
  std::vector<CombineArgs>& combine() { return combine_; }
  Status Dispatch(Executor& executor) { return DispatchTogether(Pointers(dispatch_), executor); }
  Status Combine(Executor& executor) { return CombineTogether(Pointers(combine_), executor); }
  // Scales each used row by its weight, as an expert does.
  void Weigh() {
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      Plan plan;
      ASSERT_TRUE(ReadPlan(dispatch_[rank].plan, &plan).ok());
      for (int64_t i = 0; i < plan.used_rows * hidden_; ++i) {
        T& value = rows_[rank][hidden_ + i];
        value = FromFloat<T>(row_weights_[rank][1 + i / hidden_] * ToFloat(value));
      }
    }
  }
  bool SameBits(const World& other) const {
    bool same = true;
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      same = same && Equal(rows_[rank], other.rows_[rank]) &&
             Equal(row_weights_[rank], other.row_weights_[rank]) &&
             Equal(y_[rank], other.y_[rank]) && Equal(home_[rank], other.home_[rank]);
    }
    return same;
  }
  std::vector<LineVector<T>> x_, rows_, y_;
  std::vector<std::vector<float>> weights_, row_weights_, home_;

 private:
  template <typename Args>
  static std::vector<const Args*> Pointers(const std::vector<Args>& args) {
    std::vector<const Args*> pointers;
    for (const Args& one : args) pointers.push_back(&one);
    return pointers;
  }

  const int64_t hidden_;
  Status status_;
  std::vector<std::vector<int32_t>> words_;
  std::vector<DispatchArgs> dispatch_;
  std::vector<CombineArgs> combine_;
};

// Guard rows and rows past used_rows included: ROCm/mori issue 356. Poison in them must not reach
// any result: nccl test_ht_stale_routing_map, flashinfer issue 3650.
template <typename T>
void CheckAgainstOracle(const Shape& shape, int64_t hidden, unsigned seed) {
  RandomCase c(shape, seed);
  World<T> fast(c, hidden, seed);
  World<T> oracle(c, hidden, seed);
  ThreadExecutor executor(1 + seed % 3);
  ASSERT_TRUE(fast.Dispatch(executor).ok());
  DispatchReference(c.group(), c.experts(), oracle.dispatch().data());
  ASSERT_TRUE(fast.SameBits(oracle)) << "dispatch";
  fast.Weigh();
  oracle.Weigh();
  ASSERT_TRUE(fast.Combine(executor).ok());
  CombineReference(c.group(), c.experts(), oracle.combine().data());
  ASSERT_TRUE(fast.SameBits(oracle)) << "combine";
}

TEST(Rows, EqualTheOracles) {
  unsigned seed = 1;
  for (const int64_t ranks : {1, 2, 3, 8}) {
    for (const int64_t num_experts : {1, 5, 24}) {
      for (const int64_t alignment : {1, 16}) {
        for (const double hot : {0.0, 1.0}) {
          const Shape shape{.ranks = ranks,
                            .num_experts = num_experts,
                            .topk = std::min<int64_t>(num_experts, 1 + seed % 6),
                            .max_tokens = 33,
                            .alignment = alignment,
                            .even_table = seed % 2 == 0,
                            .nowhere = seed % 3 * 0.3,
                            .hot = hot};
          const int64_t hidden = std::vector<int64_t>{0, 1, 7, 64, 1031}[seed % 5];
          CheckAgainstOracle<BF16>(shape, hidden, seed);
          CheckAgainstOracle<float>(shape, hidden, seed);
          if (testing::Test::HasFailure()) FAIL() << seed;
          ++seed;
        }
      }
    }
  }
}

// Payloads that are streamed past the caches.
TEST(Rows, EqualTheOraclesWhenStreaming) {
  CheckAgainstOracle<BF16>({.ranks = 2, .topk = 8, .max_tokens = 300, .alignment = 16}, 2048, 3);
  CheckAgainstOracle<float>({.ranks = 3, .topk = 8, .max_tokens = 300}, 1028, 5);
  // Sums of at least kStreamedPayloadBytes: 512 tokens of 8 KiB.
  const Shape large = {.ranks = 1, .topk = 2, .max_tokens = 4000};
  unsigned seed = 1;
  while (RandomCase(large, seed).tokens(0) < 512) ++seed;
  CheckAgainstOracle<float>(large, 2048, seed);
}

// The same rows in waves of experts: what one call writes, each wave begins in a buffer of its own,
// and their sum has the same bits. flashinfer issue 4531: waves that are empty on some ranks, or on
// all.
template <typename T>
void CheckWaves(const Shape& shape, int64_t waves, unsigned seed) {
  constexpr int64_t kHidden = 7;
  RandomCase c(shape, seed);
  World<T> whole(c, kHidden, seed);
  ThreadExecutor executor(2);
  ASSERT_TRUE(whole.Dispatch(executor).ok());
  World<T> parts(c, kHidden, seed);  // its y and home alone are used, and its x
  const int64_t capacity = c.group().capacity;
  // Guard rows round every wave's rows.
  using Buffer = LineVector<T>;
  std::vector<std::vector<Buffer>> rows(c.group().ranks);
  std::vector<std::vector<std::vector<float>>> row_weights(c.group().ranks);
  for (int64_t wave = waves - 1; wave >= 0; --wave) {
    std::vector<DispatchArgs> dispatch = parts.dispatch();
    for (int64_t rank = 0; rank < c.group().ranks; ++rank) {
      rows[rank].emplace(rows[rank].begin(), (capacity + 2) * kHidden, FromFloat<T>(kPoison));
      row_weights[rank].emplace(row_weights[rank].begin(), capacity + 2, kPoison);
      dispatch[rank].rows = TensorView(rows[rank].front().data() + kHidden, {capacity, kHidden});
      dispatch[rank].row_weights = TensorView(row_weights[rank].front().data() + 1, {capacity});
      dispatch[rank].wave = wave;
      dispatch[rank].waves.count = waves;
    }
    std::vector<const DispatchArgs*> pointers;
    for (const DispatchArgs& one : dispatch) pointers.push_back(&one);
    ASSERT_TRUE(DispatchTogether(pointers, executor).ok());
  }
  for (int64_t rank = 0; rank < c.group().ranks; ++rank) {
    Plan plan;
    ASSERT_TRUE(ReadPlan(parts.dispatch()[rank].plan, &plan).ok());
    CombineArgs& combine = parts.combine()[rank];
    for (int64_t wave = 0; wave < waves; ++wave) {
      const Waves all = {.count = waves};
      const int64_t begin = all.Begin(plan, rank, wave);
      const int64_t count = all.Begin(plan, rank, wave + 1) - begin;
      const Buffer& buffer = rows[rank][wave];
      ASSERT_EQ(
          std::memcmp(buffer.data() + kHidden, whole.rows_[rank].data() + kHidden * (begin + 1),
                      count * kHidden * sizeof(T)),
          0);
      for (int64_t i = 0; i < kHidden; ++i) ASSERT_EQ(ToFloat(buffer[i]), kPoison);
      for (size_t i = (count + 1) * kHidden; i < buffer.size(); ++i) {
        ASSERT_EQ(ToFloat(buffer[i]), kPoison);
      }
      const WaveRows from = {ConstTensorView(buffer.data() + kHidden, {count, kHidden}),
                             ConstTensorView(row_weights[rank][wave].data() + 1, {count})};
      if (wave == 0) combine.rows = from.rows, combine.row_weights = from.row_weights;
      if (wave > 0) combine.later_waves.push_back(from);
    }
  }
  ASSERT_TRUE(whole.Combine(executor).ok());
  ASSERT_TRUE(parts.Combine(executor).ok());
  for (int64_t rank = 0; rank < c.group().ranks; ++rank) {
    ASSERT_EQ(parts.home_[rank], whole.home_[rank]);
    ASSERT_TRUE(Equal(parts.y_[rank], whole.y_[rank]));
  }
}

TEST(Rows, WavesHaveTheBitsOfOneCall) {
  unsigned seed = 1;
  for (const int64_t ranks : {1, 2, 5}) {
    for (const int64_t waves : {2, 4, 8}) {
      for (const double hot : {0.0, 1.0}) {
        CheckWaves<BF16>({.ranks = ranks,
                          .num_experts = 11,
                          .topk = 3,
                          .max_tokens = 40,
                          .alignment = seed % 2 == 0 ? 1 : 16,
                          .even_table = seed % 3 != 0,
                          .nowhere = 0.2,
                          .hot = hot},
                         waves, seed);
        if (testing::Test::HasFailure()) FAIL() << seed;
        ++seed;
      }
    }
  }
}

// Against a plain loop: what each domain adds up is rounded before it is added to the others'.
TEST(Rows, TwoLevelSumsRoundOncePerDomain) {
  for (const int64_t domain_size : {1, 2, 3, 8}) {
    for (unsigned seed = 1; seed <= 6; ++seed) {
      RandomCase c({.ranks = 5,
                    .num_experts = 16,
                    .topk = 6,
                    .max_tokens = 20,
                    .even_table = seed % 2 == 0,
                    .nowhere = 0.2},
                   seed);
      constexpr int64_t kHidden = 9;
      World<BF16> world(c, kHidden, seed);
      ThreadExecutor executor(2);
      ASSERT_TRUE(world.Dispatch(executor).ok());
      world.Weigh();
      for (CombineArgs& args : world.combine()) args.domain_size = domain_size;
      ASSERT_TRUE(world.Combine(executor).ok());
      for (int64_t rank = 0; rank < c.group().ranks; ++rank) {
        Plan plan;
        ASSERT_TRUE(ReadPlan(world.combine()[rank].plan, &plan).ok());
        for (int64_t i = 0; i < c.tokens(rank) * kHidden; ++i) {
          float sum = 0;
          for (int64_t domain = 0; domain * domain_size < c.group().ranks; ++domain) {
            float inside = 0;
            for (int64_t expert = 0; expert < plan.num_experts; ++expert) {
              for (int64_t j = 0; j < plan.topk; ++j) {
                const int64_t slot = i / kHidden * plan.topk + j;
                const int64_t owner = plan.slot_rank[slot];
                if (c.ids(rank)[slot] != expert || owner / domain_size != domain) continue;
                const int64_t row = 1 + plan.slot_row[slot];  // after the guard row
                inside += ToFloat(world.rows_[owner][row * kHidden + i % kHidden]);
              }
            }
            sum += ToFloat(FromFloat<BF16>(inside));
          }
          ASSERT_EQ(ToFloat(world.y_[rank][i]), ToFloat(FromFloat<BF16>(sum)));
        }
      }
    }
  }
}

// Sum of w x, exactly, for data whose sums are exact: DeepEP issue 427.
TEST(Rows, DispatchThenCombineIsTheWeightedSum) {
  RandomCase c({.ranks = 4, .num_experts = 9, .topk = 4, .max_tokens = 20, .nowhere = 0.2}, 8);
  World<float> world(c, 12, 8);
  SerialExecutor executor;
  ASSERT_TRUE(world.Dispatch(executor).ok());
  world.Weigh();
  ASSERT_TRUE(world.Combine(executor).ok());
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (int64_t token = 0; token < c.tokens(rank); ++token) {
      float weight = 0;
      for (int64_t slot = token * 4; slot < (token + 1) * 4; ++slot) {
        if (c.ids(rank)[slot] >= 0) weight += world.weights_[rank][slot];
      }
      for (int64_t h = token * 12; h < (token + 1) * 12; ++h) {
        ASSERT_EQ(world.y_[rank][h], weight * world.x_[rank][h]);
      }
    }
  }
}

// marin-community/marin issue 8077: the transpose, element by element. <dispatch(x), g> = <x,
// combine(g)>, exact for these integers.
TEST(Rows, CombineIsTheTransposeOfDispatch) {
  RandomCase c({.ranks = 3, .num_experts = 8, .topk = 3, .max_tokens = 9, .alignment = 4}, 21);
  World<float> forward(c, 5, 1);
  World<float> backward(c, 5, 2);
  SerialExecutor executor;
  ASSERT_TRUE(forward.Dispatch(executor).ok());
  ASSERT_TRUE(backward.Dispatch(executor).ok());  // fills rows with integers; pads with zeros
  ASSERT_TRUE(backward.Combine(executor).ok());
  double left = 0;
  double right = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    Plan plan;
    ASSERT_TRUE(ReadPlan(forward.dispatch()[rank].plan, &plan).ok());
    for (int64_t i = 5; i < (plan.used_rows + 1) * 5; ++i) {
      left += double{forward.rows_[rank][i]} * backward.rows_[rank][i];
    }
    for (size_t i = 0; i < forward.x_[rank].size(); ++i) {
      right += double{forward.x_[rank][i]} * backward.y_[rank][i];
    }
  }
  EXPECT_EQ(left, right);
}

TEST(Rows, DroppedSlotsContributeNothing) {
  Shape shape{.ranks = 3, .num_experts = 7, .topk = 2, .max_tokens = 20, .alignment = 4};
  RandomCase c(shape, 12);
  c.group().capacity = 10;
  c.group().overflow = Overflow::kDrop;
  World<BF16> fast(c, 8, 1);
  World<BF16> oracle(c, 8, 1);
  SerialExecutor executor;
  ASSERT_TRUE(fast.Dispatch(executor).ok());
  ASSERT_TRUE(fast.Combine(executor).ok());
  DispatchReference(c.group(), c.experts(), oracle.dispatch().data());
  CombineReference(c.group(), c.experts(), oracle.combine().data());
  EXPECT_TRUE(fast.SameBits(oracle));
}

TEST(Rows, ArgumentsThatDoNotFitAreNamed) {
  RandomCase c({.ranks = 2, .max_tokens = 20}, 13);
  SerialExecutor executor;
  World<float> world(c, 8, 1);
  std::swap(world.dispatch()[0].plan, world.dispatch()[1].plan);
  EXPECT_EQ(world.Dispatch(executor).message(),
            "expert_parallel_dispatch: rank 0 of 2 passes the plan of rank 1 of 2");
  World<float> small(c, 8, 1);
  small.combine()[1].rows = TensorView(small.rows_[1].data(), {c.group().capacity - 1, 8});
  const Status status = small.Combine(executor);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 44), "expert_parallel_combine: rank 1: rows is f32");
  World<float> other(c, 8, 1);
  other.dispatch()[1].weights = ConstTensorView();
  EXPECT_FALSE(other.Dispatch(executor).ok());
}

}  // namespace
}  // namespace anabranch::expert_parallel
