// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/ragged_plan/ragged_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/executor.h"

namespace anabranch {
namespace {

// The arrays of one plan.
struct Plan {
  Plan(int64_t tokens, int64_t topk, int64_t num_experts, int64_t num_rows)
      : tokens(tokens),
        topk(topk),
        sizes(num_experts, 77),
        offsets(num_experts + 1, 77),
        row_token(num_rows, 77),
        slot_row(tokens * topk, 77) {}

  RaggedPlanArgs Args(const std::vector<int32_t>& experts) {
    return {ConstTensorView(experts.data(), {tokens, topk}),
            TensorView(sizes.data(), {static_cast<int64_t>(sizes.size())}),
            TensorView(offsets.data(), {static_cast<int64_t>(offsets.size())}),
            TensorView(row_token.data(), {static_cast<int64_t>(row_token.size())}),
            TensorView(slot_row.data(), {tokens, topk})};
  }

  int64_t tokens;
  int64_t topk;
  std::vector<int32_t> sizes;
  std::vector<int32_t> offsets;
  std::vector<int32_t> row_token;
  std::vector<int32_t> slot_row;
};

using Ids = std::vector<int32_t>;

TEST(RaggedPlanReferenceTest, OrdersByExpertThenToken) {
  const Ids experts = {2, 0, /**/ 0, -1, /**/ 2, 2, /**/ -1, -1};
  Plan plan(4, 2, 4, 7);
  RaggedPlanReference(plan.Args(experts));
  EXPECT_EQ(plan.sizes, Ids({2, 0, 3, 0}));
  EXPECT_EQ(plan.offsets, Ids({0, 2, 2, 5, 5}));
  EXPECT_EQ(plan.row_token, Ids({0, 1, 0, 2, 2, -1, -1}));
  EXPECT_EQ(plan.slot_row, Ids({2, 0, 1, -1, 3, 4, -1, -1}));
}

// Runs the plan on num_threads threads with exactly the scratch that it asks for.
Status RunPlan(const Ids& experts, int num_threads, Plan* plan) {
  ThreadExecutor executor(num_threads);
  const int64_t bytes =
      RaggedPlanScratchBytes(plan->tokens * plan->topk, static_cast<int64_t>(plan->sizes.size()));
  std::vector<char> scratch(bytes + kCacheLineBytes, 77);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  char* aligned = scratch.data() + (RoundUp(address, kCacheLineBytes) - address);
  Context context{&executor, aligned, bytes};
  return RaggedPlan(plan->Args(experts), context);
}

void ExpectLikeReference(const Ids& experts, int64_t topk, int64_t num_experts, int64_t num_rows) {
  const int64_t tokens = static_cast<int64_t>(experts.size()) / topk;
  Plan expected(tokens, topk, num_experts, num_rows);
  RaggedPlanReference(expected.Args(experts));
  for (int num_threads : {1, 2, 3, 7}) {
    Plan plan(tokens, topk, num_experts, num_rows);
    const Status status = RunPlan(experts, num_threads, &plan);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(plan.sizes, expected.sizes) << num_threads << " threads";
    EXPECT_EQ(plan.offsets, expected.offsets) << num_threads << " threads";
    EXPECT_EQ(plan.row_token, expected.row_token) << num_threads << " threads";
    EXPECT_EQ(plan.slot_row, expected.slot_row) << num_threads << " threads";
  }
}

// Ids drawn from [low, num_experts).
Ids RandomIds(uint32_t seed, int64_t count, int32_t low, int32_t num_experts) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int32_t> id(low, num_experts - 1);
  Ids ids(count);
  for (int32_t& value : ids) value = id(generator);
  return ids;
}

TEST(RaggedPlanTest, RandomProblems) {
  const struct {
    int64_t tokens, topk, num_experts;
  } problems[] = {{1, 1, 1},      {5, 3, 7},     {100, 8, 64},
                  {4099, 8, 256}, {65536, 1, 3}, {33333, 2, 1000}};
  for (const auto& problem : problems) {
    SCOPED_TRACE(testing::Message() << "T=" << problem.tokens << " k=" << problem.topk
                                    << " E=" << problem.num_experts);
    const int64_t slots = problem.tokens * problem.topk;
    const auto num_experts = static_cast<int32_t>(problem.num_experts);
    ExpectLikeReference(RandomIds(1, slots, 0, num_experts), problem.topk, num_experts, slots);
    ExpectLikeReference(RandomIds(2, slots, -1, num_experts), problem.topk, num_experts, slots + 5);
  }
}

TEST(RaggedPlanTest, EdgeProblems) {
  ExpectLikeReference({}, 2, 5, 0);
  ExpectLikeReference({}, 2, 5, 3);
  ExpectLikeReference(Ids(40000, -1), 4, 6, 0);
  ExpectLikeReference(Ids(40000, -1), 4, 6, 200000);  // several units of -1
  ExpectLikeReference(Ids(40000, 5), 4, 6, 40000);    // all to the last expert
  ExpectLikeReference(Ids(40000, 0), 4, 1, 40000);
  ExpectLikeReference({3, 3, 1, 3}, 2, 4, 4);  // the same expert twice in one token
}

TEST(RaggedPlanTest, RowsMayBeFewerThanSlots) {
  Ids ids(30000, -1);
  for (int i = 0; i < 100; ++i) ids[i * 299] = i % 7;
  ExpectLikeReference(ids, 3, 7, 100);

  Plan plan(10000, 3, 7, 99);
  const Status status = RunPlan(ids, 2, &plan);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "ragged_plan: 100 slots are routed but num_rows=99; num_rows must be at least the "
            "number of routed slots");
}

TEST(RaggedPlanTest, NamesTheFirstIdOutOfRange) {
  Ids ids = RandomIds(3, 60000, -1, 9);
  ids[50001] = -2;
  ids[40003] = 9;
  for (int num_threads : {1, 2, 3, 7}) {
    Plan plan(30000, 2, 9, 60000);
    const Status status = RunPlan(ids, num_threads, &plan);
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
    EXPECT_EQ(status.message(),
              "ragged_plan: experts[token=20001, slot=1]=9 is out of range; an id must be -1 "
              "(routed nowhere) or in [0, 9)");
  }
  for (int32_t bad : {-2, 9, 2147483647, -2147483647 - 1}) {
    Plan plan(1, 2, 9, 2);
    EXPECT_EQ(RunPlan({0, bad}, 1, &plan).code(), StatusCode::kOutOfRange) << bad;
  }
}

TEST(RaggedPlanTest, ChecksShapesAndScratch) {
  SerialExecutor executor;
  Plan plan(2, 2, 3, 4);
  const Ids ids = {0, 1, 2, 0};
  RaggedPlanArgs args = plan.Args(ids);
  Context no_scratch{&executor, nullptr, 0};
  EXPECT_EQ(RaggedPlan(args, no_scratch).code(), StatusCode::kInvalidArgument);
  args.group_offsets = TensorView(plan.offsets.data(), {3});
  std::vector<char> scratch(4096);
  Context context{&executor, scratch.data(), 4096};
  const Status status = RaggedPlan(args, context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("group_offsets is i32[3]"), std::string::npos);
  EXPECT_NE(status.message().find("i32[2,2]"), std::string::npos);
}

}  // namespace
}  // namespace anabranch
