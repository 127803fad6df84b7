// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Prepare, dispatch and combine as each rank calls them, over the in-process transport.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "comm/expert_parallel/combine.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/prepare.h"
#include "comm/expert_parallel/random_case.h"
#include "comm/in_process.h"
#include "comm/simulated.h"

namespace anabranch::expert_parallel {
namespace {

constexpr int64_t kHidden = 24;

// One rank's buffers, poisoned with NaN before every use.
struct Rank {
  Rank(RandomCase& c, int64_t rank) : c_(c), tokens(c.tokens(rank)) {
    const Group& group = c.group();
    const int64_t local = MaxLocalExperts(group);
    plan.resize(PlanWords(group, tokens));
    sizes.resize(local);
    offsets.resize(local + 1);
    report.resize(3);
    rows.resize(group.capacity * kHidden);
    row_weights.resize(group.capacity);
    x.resize(tokens * kHidden);
    y.resize(tokens * kHidden);
    weights.resize(tokens * group.topk);
    home.resize(tokens * group.topk);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7 + rank) % 31);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 5 + rank);
    prepare = {.experts = c.experts()[rank],
               .rank_of_expert = ConstTensorView(group.rank_of_expert, {group.num_experts}),
               .alignment = group.alignment,
               .capacity = group.capacity,
               .overflow = group.overflow,
               .plan = TensorView(plan.data(), {static_cast<int64_t>(plan.size())}),
               .group_sizes = TensorView(sizes.data(), {local}),
               .group_offsets = TensorView(offsets.data(), {local + 1}),
               .report = TensorView(report.data(), {3})};
    const ConstTensorView view = prepare.plan;
    const TensorView rows_view(rows.data(), {group.capacity, kHidden});
    const TensorView weights_view(row_weights.data(), {group.capacity});
    dispatch = {view, ConstTensorView(x.data(), {tokens, kHidden}),
                ConstTensorView(weights.data(), {tokens, group.topk}), rows_view, weights_view};
    combine = {view, rows_view, weights_view, TensorView(y.data(), {tokens, kHidden}),
               TensorView(home.data(), {tokens, group.topk})};
    Poison();
  }
  void Poison() {
    for (auto* buffer : {&rows, &row_weights, &y, &home}) {
      std::fill(buffer->begin(), buffer->end(), std::numeric_limits<float>::quiet_NaN());
    }
  }
  // One step of this rank. A token's sum is the number of its routed slots times x.
  void Step(Transport& transport, int64_t run) {
    SerialExecutor executor;
    Status status = Prepare(prepare, {"prepare", run, 0, 0}, transport);
    ASSERT_TRUE(status.ok()) << status.message();
    status = Dispatch(dispatch, {"dispatch", run, 1, 0}, transport, executor);
    ASSERT_TRUE(status.ok()) << status.message();
    status = Combine(combine, {"combine", run, 2, 0}, transport, executor);
    ASSERT_TRUE(status.ok()) << status.message();
    const int64_t topk = c_.group().topk;
    for (int64_t token = 0; token < tokens; ++token) {
      float routed = 0;
      for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot) {
        const bool is_routed = prepare.experts.as<int32_t>()[slot] >= 0;
        routed += is_routed;
        ASSERT_EQ(home[slot], is_routed ? weights[slot] : 0);
      }
      for (int64_t i = token * kHidden; i < (token + 1) * kHidden; ++i) {
        ASSERT_EQ(y[i], routed * x[i]);
      }
    }
  }

  RandomCase& c_;
  const int64_t tokens;
  std::vector<int32_t> plan, sizes, offsets, report;
  std::vector<float> x, y, rows, weights, row_weights, home;
  PrepareArgs prepare;
  DispatchArgs dispatch;
  CombineArgs combine;
};

void OnRanks(MeetingPlace& place, int64_t ranks, const std::function<void(Transport&)>& body) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      InProcessTransport transport(&place, 0, static_cast<int>(rank), static_cast<int>(ranks));
      body(transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// NVIDIA/Megatron-LM issue 7400: huge or NaN values once in thousands of steps. Buffers are
// poisoned before each.
TEST(Ranks, SoakWithPoisonedBuffers) {
  MeetingPlace place(std::chrono::milliseconds(60000));
  constexpr int64_t kSteps = 1000;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    RandomCase c({.ranks = 1 + seed,
                  .num_experts = 7,
                  .topk = 3,
                  .max_tokens = 9,
                  .alignment = seed % 2 == 0 ? 16 : 1,
                  .nowhere = 0.2},
                 seed);
    OnRanks(place, c.group().ranks, [&](Transport& transport) {
      Rank rank(c, transport.rank());
      for (int64_t step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
        rank.Poison();
        rank.Step(transport, step);
      }
    });
  }
}

TEST(Ranks, AFaultOfOneRankReachesEveryRank) {
  MeetingPlace place(std::chrono::milliseconds(60000));
  RandomCase c({.ranks = 3, .num_experts = 7, .topk = 3, .max_tokens = 9}, 3);
  ASSERT_FALSE(c.ids(1).empty()) << "choose a seed that gives rank 1 tokens";
  const int32_t saved = c.ids(1)[0];
  OnRanks(place, 3, [&](Transport& transport) {
    Rank rank(c, transport.rank());
    if (transport.rank() == 1) c.ids(1)[0] = 99;
    const Status status = Prepare(rank.prepare, {"prepare", 0, 0, 0}, transport);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    if (transport.rank() == 1) c.ids(1)[0] = saved;
    rank.Step(transport, 1);
  });
}

// 64 ranks, 4,096 tokens, 256 experts: 64 KiB travel to each rank.
TEST(Ranks, PrepareOnASimulatedGroup) {
  constexpr int64_t kRanks = 64, kTokens = 4096, kExperts = 256, kTopk = 8;
  std::vector<int32_t> table(kExperts), ids(kTokens * kTopk), words, sizes(4), offsets(5),
      report(3);
  for (int64_t e = 0; e < kExperts; ++e) {
    table[e] = static_cast<int32_t>(EvenRankOfExpert(e, kExperts, kRanks));
  }
  for (int64_t i = 0; i < kTokens * kTopk; ++i) {
    ids[i] = static_cast<int32_t>((i / kTopk * 37 + i % kTopk * 31) % kExperts);
  }
  const Group group = {
      .ranks = kRanks, .num_experts = kExperts, .topk = kTopk, .rank_of_expert = table.data()};
  words.resize(PlanWords(group, kTokens));
  const PrepareArgs args = {.experts = ConstTensorView(ids.data(), {kTokens, kTopk}),
                            .rank_of_expert = ConstTensorView(table.data(), {kExperts}),
                            .capacity = WorstCapacity(kRanks * kTokens, kTopk, 4, 1),
                            .plan = TensorView(words.data(), {static_cast<int64_t>(words.size())}),
                            .group_sizes = TensorView(sizes.data(), {4}),
                            .group_offsets = TensorView(offsets.data(), {5}),
                            .report = TensorView(report.data(), {3})};
  // The other ranks route the same way.
  std::vector<int32_t> counts(kExperts);
  ASSERT_TRUE(CountSlots(group, args.experts, counts.data()).ok());
  SimulatedTransport transport(5, kRanks, [&](int, int64_t bytes, void* contribution) {
    std::memcpy(contribution, counts.data(), bytes);
  });
  const Status status = Prepare(args, {"prepare", 0, 0, 0}, transport);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(transport.records()[0].gathered_bytes, 4 * kExperts * (kRanks - 1));
  EXPECT_EQ(offsets[4], kRanks * kTokens * kTopk / kRanks);
}

}  // namespace
}  // namespace anabranch::expert_parallel
