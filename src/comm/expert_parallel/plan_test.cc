// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/expert_parallel/random_case.h"

namespace anabranch::expert_parallel {
namespace {

Plan Read(const std::vector<int32_t>& words) {
  Plan plan;
  const Status status =
      ReadPlan(ConstTensorView(words.data(), {static_cast<int64_t>(words.size())}), &plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

// Every rank's plan against the oracle, and the invariants that need no oracle.
void CheckCase(RandomCase& c) {
  const Group& group = c.group();
  int64_t received = 0;
  int64_t routed = 0;
  std::set<std::pair<int32_t, int32_t>> places;
  for (int64_t rank = 0; rank < group.ranks; ++rank) {
    std::vector<int32_t> words;
    const Status status = c.Fill(rank, &words);
    ASSERT_TRUE(status.ok()) << status.message();
    const Plan plan = Read(words);
    const int64_t slots = plan.tokens * plan.topk;
    std::vector<int32_t> owner(slots), row(slots), offsets(group.num_experts + 1);
    PlanReference(group, rank, c.experts(), owner.data(), row.data(), offsets.data());
    for (int64_t slot = 0; slot < slots; ++slot) {
      ASSERT_EQ(plan.slot_rank[slot], owner[slot]) << slot;
      ASSERT_EQ(plan.slot_row[slot], row[slot]) << slot;
      if (row[slot] < 0) continue;
      ++routed;
      // The map is a bijection onto rows that carry a token.
      ASSERT_TRUE(places.emplace(owner[slot], row[slot]).second);
    }
    int64_t own = 0;
    for (int64_t e = 0; e < group.num_experts; ++e) own += group.rank_of_expert[e] == rank;
    for (int64_t local = 0; local < plan.local_experts; ++local) {
      received += plan.group_sizes[local];
      if (local <= own) {
        ASSERT_EQ(plan.group_offsets[local], offsets[local]);
      }
      if (local >= own) {
        ASSERT_EQ(plan.group_sizes[local], 0);
      }
      ASSERT_EQ(plan.group_offsets[local] % group.alignment, 0);
      const int64_t width = plan.group_offsets[local + 1] - plan.group_offsets[local];
      ASSERT_GE(width, plan.group_sizes[local]);
      ASSERT_LT(width, plan.group_sizes[local] + group.alignment);
    }
    ASSERT_LE(plan.used_rows, group.capacity);
    ASSERT_EQ(plan.dropped, 0);
    for (int64_t token = 0; token < plan.tokens; ++token) {
      const int32_t* ids = c.ids(rank).data() + token * plan.topk;
      const int32_t* order = plan.slot_order + token * plan.topk;
      for (int64_t i = 1; i < plan.topk; ++i) ASSERT_LE(ids[order[i - 1]], ids[order[i]]);
    }
  }
  // Every routed slot is received once: deepseek-ai/DeepEP issue 427.
  EXPECT_EQ(received, routed);
  EXPECT_EQ(static_cast<int64_t>(places.size()), routed);
}

// DeepEP 427 (conservation), 604 and 744 (unequal T), NVIDIA-NeMo/Automodel 3641 (any T),
// sgl-kernel-npu 69 (empty senders), Megatron-LM 1877 (empty receivers), transformers 40545 (-1).
TEST(Plan, EqualsTheOracleForAnyGroupAndRouting) {
  unsigned seed = 1;
  for (const int64_t ranks : {1, 2, 3, 8}) {
    for (const int64_t num_experts : {1, 2, 5, 8, 24}) {
      for (const int64_t alignment : {1, 16, 32, 128}) {
        for (const bool even : {true, false}) {
          for (const double hot : {0.0, 1.0}) {
            Shape shape{.ranks = ranks,
                        .num_experts = num_experts,
                        .topk = std::min<int64_t>(num_experts, 1 + seed % 6),
                        .max_tokens = 33,
                        .alignment = alignment,
                        .even_table = even,
                        .nowhere = seed % 3 * 0.3,
                        .hot = hot};
            RandomCase c(shape, seed++);
            CheckCase(c);
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Plan, AllSlotsNowhere) {
  RandomCase c({.ranks = 3, .nowhere = 2.0}, 5);
  CheckCase(c);
}

// NVIDIA/TensorRT-LLM 13888, vllm 21497: nine experts on eight ranks, and fewer than ranks.
TEST(Plan, EvenTableIsCeilAndFloor) {
  for (int64_t ranks = 1; ranks < 12; ++ranks) {
    for (int64_t experts = 1; experts < 30; ++experts) {
      std::vector<int64_t> owned(ranks, 0);
      int64_t last = 0;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t rank = EvenRankOfExpert(e, experts, ranks);
        ASSERT_GE(rank, last);
        ASSERT_LT(rank, ranks);
        last = rank;
        ++owned[rank];
      }
      for (const int64_t count : owned) {
        ASSERT_TRUE(count == experts / ranks || count == (experts + ranks - 1) / ranks);
      }
    }
  }
}

// NVIDIA/nccl 2252 and 2123: a formula that lost a factor. All routings of few tokens are tried: a
// rank's rows depend on its experts' counts alone, and every vector of counts in [0, T] whose sum
// is at most T min(k, L) is some routing.
TEST(Plan, WorstCapacityIsReachedAndNeverExceeded) {
  for (int64_t tokens = 0; tokens <= 5; ++tokens) {
    for (int64_t topk = 0; topk <= 3; ++topk) {
      for (int64_t local = 0; local <= 3; ++local) {
        for (const int64_t alignment : {1, 2, 3, 4}) {
          int64_t most = 0;
          int64_t vectors = 1;
          for (int64_t i = 0; i < local; ++i) vectors *= tokens + 1;
          for (int64_t code = 0; code < vectors; ++code) {
            int64_t sum = 0;
            int64_t rows = 0;
            for (int64_t i = 0, rest = code; i < local; ++i, rest /= tokens + 1) {
              const int64_t count = rest % (tokens + 1);
              sum += count;
              rows += (count + alignment - 1) / alignment * alignment;
            }
            if (sum <= tokens * std::min(topk, local)) most = std::max(most, rows);
          }
          ASSERT_EQ(WorstCapacity(tokens, topk, local, alignment), most)
              << "T=" << tokens << " k=" << topk << " L=" << local << " A=" << alignment;
        }
      }
    }
  }
}

// pytorch/torchtitan 2207, ROCm/mori 356: a capacity that is too small.
TEST(Plan, OverflowIsAnErrorWithRankAndBothNumbers) {
  RandomCase c({.ranks = 2, .num_experts = 4, .topk = 2, .max_tokens = 20, .hot = 1.0}, 9);
  std::vector<int32_t> words;
  ASSERT_TRUE(c.Fill(0, &words).ok());
  const int64_t needed = Read(words).needed;
  ASSERT_GT(needed, 0);
  c.group().capacity = needed;
  EXPECT_TRUE(c.Fill(0, &words).ok());
  c.group().capacity = needed - 1;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Status status = c.Fill(rank, &words);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message(), "expert_parallel: rank 0 needs " + std::to_string(needed) +
                                    " rows but capacity=" + std::to_string(needed - 1) +
                                    " rows were given");
  }
}

TEST(Plan, OverflowGrowsToTheSameCapacityOnEveryRank) {
  RandomCase c({.ranks = 3, .num_experts = 7, .max_tokens = 20, .hot = 0.5}, 11);
  c.group().capacity = 1;
  c.group().overflow = Overflow::kGrow;
  std::set<int64_t> capacities;
  for (int64_t rank = 0; rank < 3; ++rank) {
    std::vector<int32_t> words;
    ASSERT_TRUE(c.Fill(rank, &words).ok());
    const Plan plan = Read(words);
    EXPECT_EQ(plan.capacity, plan.needed);
    EXPECT_GE(plan.capacity, plan.used_rows);
    capacities.insert(plan.capacity);
  }
  EXPECT_EQ(capacities.size(), 1u);
}

TEST(Plan, OverflowDropsAndCountsEverySlotPastTheCapacity) {
  RandomCase c({.ranks = 3, .num_experts = 7, .max_tokens = 20, .alignment = 4}, 12);
  c.group().capacity = 10;
  c.group().overflow = Overflow::kDrop;
  int64_t kept = 0, dropped = 0, routed = 0, received = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    std::vector<int32_t> words;
    ASSERT_TRUE(c.Fill(rank, &words).ok());
    const Plan plan = Read(words);
    EXPECT_EQ(plan.capacity, 10);
    EXPECT_LE(plan.used_rows, 10);
    for (int64_t slot = 0; slot < plan.tokens * plan.topk; ++slot) {
      routed += c.ids(rank)[slot] >= 0;
      kept += plan.slot_row[slot] >= 0;
      EXPECT_LT(plan.slot_row[slot], 10);
      EXPECT_EQ(plan.slot_row[slot] < 0, plan.slot_rank[slot] < 0);
    }
    for (int64_t local = 0; local < plan.local_experts; ++local) {
      received += plan.group_sizes[local];
    }
    dropped += plan.dropped;
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(kept + dropped, routed);
  EXPECT_EQ(received, kept);
}

// vllm-project/vllm 48740: a duplicate is rejected, by name.
TEST(Plan, DuplicatesAndIdsOutOfRangeAreNamed) {
  std::vector<int32_t> table(4, 0), counts(4);
  const Group group{.num_experts = 4, .topk = 3, .rank_of_expert = table.data()};
  std::vector<int32_t> ids = {0, 1, 2, 3, 1, 3};
  const ConstTensorView experts(ids.data(), {2, 3});
  EXPECT_EQ(CountSlots(group, experts, counts.data()).message(),
            "expert_parallel: experts[token=1, slot=2]=3 is a duplicate; a token's experts must "
            "differ");
  ids[5] = 4;
  EXPECT_EQ(CountSlots(group, experts, counts.data()).message(),
            "expert_parallel: experts[token=1, slot=2]=4 is out of range; an id must be -1 (routed "
            "nowhere) or in [0, 4)");
  ids[5] = ids[4] = -1;
  EXPECT_TRUE(CountSlots(group, experts, counts.data()).ok());
  EXPECT_EQ(counts, (std::vector<int32_t>{1, 1, 1, 1}));
}

TEST(Plan, CountsOfOtherExpertsAreRefused) {
  RandomCase c({.ranks = 2, .max_tokens = 20}, 14);
  std::vector<int32_t> counts = c.Counts();
  std::vector<int32_t> words(PlanWords(c.group(), c.tokens(0)));
  counts[0] += 1;
  const Status status =
      FillPlan(c.group(), 0, c.experts()[0], ConstTensorView(counts.data(), {2, 8}),
               TensorView(words.data(), {static_cast<int64_t>(words.size())}));
  EXPECT_EQ(status.message(),
            "expert_parallel: counts[rank=0] are not those of the rank's experts");
}

TEST(Plan, IsRelocatableAndDetectsChanges) {
  RandomCase c({.ranks = 2, .max_tokens = 20}, 13);
  std::vector<int32_t> words;
  ASSERT_TRUE(c.Fill(1, &words).ok());
  const std::vector<int32_t> copy = words;
  std::fill(words.begin(), words.end(), -1);
  EXPECT_EQ(Read(copy).tokens, c.tokens(1));
  for (size_t at = 0; at < copy.size(); ++at) {
    std::vector<int32_t> changed = copy;
    changed[at] ^= 1 << (at % 31);
    Plan plan;
    // Words of the header that are not used are covered too.
    EXPECT_FALSE(
        ReadPlan(ConstTensorView(changed.data(), {static_cast<int64_t>(copy.size())}), &plan).ok())
        << at;
  }
}

TEST(Plan, BadGroupsAreNamed) {
  std::vector<int32_t> table = {0, 2}, counts(2);
  Group group{.ranks = 2, .num_experts = 2, .rank_of_expert = table.data()};
  const ConstTensorView experts(counts.data(), {2, 1});
  EXPECT_EQ(CountSlots(group, experts, counts.data()).message(),
            "expert_parallel: rank_of_expert[1]=2; must be in [0, 2)");
  group.alignment = 0;
  EXPECT_EQ(CountSlots(group, experts, counts.data()).message(),
            "expert_parallel: alignment=0; must be in [1, 2^31)");
}

}  // namespace
}  // namespace anabranch::expert_parallel
