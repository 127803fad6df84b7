// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/ragged_plan/rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/executor.h"
#include "ops/ragged_plan/ragged_plan.h"

namespace anabranch {
namespace {

using Ids = std::vector<int32_t>;
using Floats = std::vector<float>;

// Two tokens, two slots: token 0 owns rows 2 and 0, token 1 owns row 1; row 3 is unused.
const Ids kRowToken = {0, 1, 0, -1};
const Ids kSlotRow = {2, 0, 1, -1};
const Ids kOffsets = {0, 1, 2, 3};

TEST(RowsReferenceTest, GathersAndZeroesTheTail) {
  const Floats x = {1, 2, 3, 4};
  Floats rows(8, 77);
  GatherRowsReference({ConstTensorView(x.data(), {2, 2}), ConstTensorView(kRowToken.data(), {4}),
                       TensorView(rows.data(), {4, 2})});
  EXPECT_EQ(rows, Floats({1, 2, 3, 4, 1, 2, 0, 0}));

  const Floats weights = {0.5, 0.25, 2, 99};
  Floats row_weights(4, 77);
  GatherWeightsReference({ConstTensorView(weights.data(), {2, 2}),
                          ConstTensorView(kSlotRow.data(), {2, 2}),
                          TensorView(row_weights.data(), {4})});
  EXPECT_EQ(row_weights, Floats({0.25, 2, 0.5, 0}));
}

TEST(RowsReferenceTest, CombinesInAscendingRowOrder) {
  // 1 is lost when it meets 2^24 first: rows 0 and 2 of token 0 are added as (0 + row 0) + row 2.
  const Floats rows = {1, 1, /**/ 5, 6, /**/ 16777216, 3, /**/ 99, 99};
  const Floats weights = {0.5, 2, 3, 99};
  Floats y(4, 77);
  const ConstTensorView row_view(rows.data(), {4, 2});
  const ConstTensorView slot_row(kSlotRow.data(), {2, 2});
  CombineRowsReference({row_view, slot_row, {}, TensorView(y.data(), {2, 2})});
  EXPECT_EQ(y, Floats({16777216, 4, 5, 6}));
  CombineRowsReference(
      {row_view, slot_row, ConstTensorView(weights.data(), {2, 2}), TensorView(y.data(), {2, 2})});
  EXPECT_EQ(y, Floats({8388610, 3.5, 15, 18}));
}

TEST(RowsReferenceTest, GradientIsTheTransposeAndTheDotProduct) {
  const Floats rows = {1, 2, /**/ 3, 4, /**/ 5, 6, /**/ 7, 8};
  const Floats weights = {0.5, 2, 3, 99};
  const Floats d_y = {1, 10, /**/ 100, 1000};
  Floats d_rows(8, 77);
  Floats d_weights(4, 77);
  CombineRowsGradReference(
      {ConstTensorView(rows.data(), {4, 2}), ConstTensorView(kSlotRow.data(), {2, 2}),
       ConstTensorView(kOffsets.data(), {4}), ConstTensorView(weights.data(), {2, 2}),
       ConstTensorView(d_y.data(), {2, 2}), TensorView(d_rows.data(), {4, 2}),
       TensorView(d_weights.data(), {2, 2})});
  EXPECT_EQ(d_rows, Floats({2, 20, /**/ 300, 3000, /**/ 0.5, 5, /**/ 0, 0}));
  EXPECT_EQ(d_weights, Floats({65, 21, 4300, 0}));
}

// A random plan with its oracle's arrays; about one slot in eight is routed nowhere.
struct Problem {
  Problem(uint32_t seed, int64_t tokens, int64_t topk, int64_t hidden, int64_t num_experts)
      : tokens(tokens),
        topk(topk),
        hidden(hidden),
        num_rows(tokens * topk + 3),
        sizes(num_experts),
        offsets(num_experts + 1),
        row_token(num_rows),
        slot_row(tokens * topk),
        generator(seed) {
    Ids experts(tokens * topk);
    for (int32_t& id : experts) {
      const auto draw = static_cast<int32_t>(generator() % (num_experts * 8));
      id = draw < num_experts ? -1 : draw % static_cast<int32_t>(num_experts);
    }
    RaggedPlanReference(
        {ConstTensorView(experts.data(), {tokens, topk}), TensorView(sizes.data(), {num_experts}),
         TensorView(offsets.data(), {num_experts + 1}), TensorView(row_token.data(), {num_rows}),
         TensorView(slot_row.data(), {tokens, topk})});
  }

  template <typename T>
  std::vector<T> Random(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<T> values(count);
    for (T& value : values) value = FromFloat<T>(normal(generator));
    return values;
  }
  ConstTensorView RowToken() const { return ConstTensorView(row_token.data(), {num_rows}); }
  ConstTensorView SlotRow() const { return ConstTensorView(slot_row.data(), {tokens, topk}); }
  ConstTensorView Offsets() const {
    return ConstTensorView(offsets.data(), {static_cast<int64_t>(offsets.size())});
  }

  int64_t tokens, topk, hidden, num_rows;
  Ids sizes, offsets, row_token, slot_row;
  std::mt19937 generator;
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename T>
class RowsTest : public testing::Test {};
using RowTypes = testing::Types<float, BF16>;
TYPED_TEST_SUITE(RowsTest, RowTypes);

const int kThreads[] = {1, 2, 3, 7};
// Hidden sizes that are no multiple of a vector, of the column block, or of anything.
const int64_t kHidden[] = {1, 7, 64, 1000, 1031, 2048};

TYPED_TEST(RowsTest, GatherEqualsTheOracle) {
  using T = TypeParam;
  for (int64_t hidden : kHidden) {
    Problem problem(1, 301, 4, hidden, 9);
    const auto x = problem.Random<T>(problem.tokens * hidden);
    std::vector<T> expected(problem.num_rows * hidden);
    GatherRowsArgs args{ConstTensorView(x.data(), {problem.tokens, hidden}), problem.RowToken(),
                        TensorView(expected.data(), {problem.num_rows, hidden})};
    GatherRowsReference(args);
    for (int num_threads : kThreads) {
      ThreadExecutor executor(num_threads);
      Context context{&executor, nullptr, 0};
      std::vector<T> rows(expected.size(), FromFloat<T>(77));
      args.rows = TensorView(rows.data(), {problem.num_rows, hidden});
      ASSERT_TRUE(GatherRows(args, context).ok());
      EXPECT_TRUE(SameBits(rows, expected)) << "H=" << hidden << " threads=" << num_threads;
    }
  }
}

// The sums have the oracle's order and roundings, so the bits must agree.
TYPED_TEST(RowsTest, CombineEqualsTheOracle) {
  using T = TypeParam;
  for (int64_t hidden : kHidden) {
    Problem problem(2, 301, 5, hidden, 9);
    const auto rows = problem.Random<T>(problem.num_rows * hidden);
    const auto weights = problem.Random<float>(problem.tokens * problem.topk);
    for (bool weighted : {false, true}) {
      std::vector<T> expected(problem.tokens * hidden);
      CombineRowsArgs args{
          ConstTensorView(rows.data(), {problem.num_rows, hidden}), problem.SlotRow(),
          weighted ? ConstTensorView(weights.data(), {problem.tokens, problem.topk})
                   : ConstTensorView(),
          TensorView(expected.data(), {problem.tokens, hidden})};
      CombineRowsReference(args);
      for (int num_threads : kThreads) {
        ThreadExecutor executor(num_threads);
        Context context{&executor, nullptr, 0};
        std::vector<T> y(expected.size(), FromFloat<T>(77));
        args.y = TensorView(y.data(), {problem.tokens, hidden});
        ASSERT_TRUE(CombineRows(args, context).ok());
        EXPECT_TRUE(SameBits(y, expected)) << "H=" << hidden << " threads=" << num_threads;
      }
    }
  }
}

TYPED_TEST(RowsTest, CombineGradientEqualsTheOracle) {
  using T = TypeParam;
  for (int64_t hidden : kHidden) {
    Problem problem(3, 301, 5, hidden, 9);
    const int64_t slots = problem.tokens * problem.topk;
    const auto rows = problem.Random<T>(problem.num_rows * hidden);
    const auto d_y = problem.Random<T>(problem.tokens * hidden);
    const auto weights = problem.Random<float>(slots);
    std::vector<T> d_rows(rows.size());
    Floats d_weights(slots);
    CombineRowsGradArgs args{ConstTensorView(rows.data(), {problem.num_rows, hidden}),
                             problem.SlotRow(),
                             problem.Offsets(),
                             ConstTensorView(weights.data(), {problem.tokens, problem.topk}),
                             ConstTensorView(d_y.data(), {problem.tokens, hidden}),
                             TensorView(d_rows.data(), {problem.num_rows, hidden}),
                             TensorView(d_weights.data(), {problem.tokens, problem.topk})};
    CombineRowsGradReference(args);
    const auto expected_rows = d_rows;
    const Floats expected_weights = d_weights;
    Floats first_weights;
    for (int num_threads : kThreads) {
      ThreadExecutor executor(num_threads);
      Context context{&executor, nullptr, 0};
      std::fill(d_rows.begin(), d_rows.end(), FromFloat<T>(77));
      std::fill(d_weights.begin(), d_weights.end(), 77.0f);
      ASSERT_TRUE(CombineRowsGrad(args, context).ok());
      EXPECT_TRUE(SameBits(d_rows, expected_rows)) << "H=" << hidden;
      if (first_weights.empty()) first_weights = d_weights;
      EXPECT_TRUE(SameBits(d_weights, first_weights)) << "threads=" << num_threads;
      for (int64_t slot = 0; slot < slots; ++slot) {
        double magnitude = 0;
        for (int64_t h = 0; h < hidden && problem.slot_row[slot] >= 0; ++h) {
          magnitude +=
              std::fabs(static_cast<double>(ToFloat(rows[problem.slot_row[slot] * hidden + h])) *
                        ToFloat(d_y[slot / problem.topk * hidden + h]));
        }
        // 16 partial sums of H/16 rounded products, then 4 levels of a tree; eps = 2^-24.
        const double bound = (hidden / 16 + 6) * 0x1p-24 * magnitude;
        EXPECT_NEAR(d_weights[slot], expected_weights[slot], bound);
      }
    }
  }
}

TEST(RowsTest, GatherWeightsEqualsTheOracle) {
  Problem problem(4, 20001, 3, 1, 9);
  const Floats weights = problem.Random<float>(problem.tokens * problem.topk);
  Floats expected(problem.num_rows);
  GatherWeightsArgs args{ConstTensorView(weights.data(), {problem.tokens, problem.topk}),
                         problem.SlotRow(), TensorView(expected.data(), {problem.num_rows})};
  GatherWeightsReference(args);
  for (int num_threads : kThreads) {
    ThreadExecutor executor(num_threads);
    Context context{&executor, nullptr, 0};
    Floats row_weights(expected.size(), 77);
    args.row_weights = TensorView(row_weights.data(), {problem.num_rows});
    ASSERT_TRUE(GatherWeights(args, context).ok());
    EXPECT_EQ(row_weights, expected);
  }
}

TEST(RowsTest, NothingToMove) {
  SerialExecutor executor;
  Context context{&executor, nullptr, 0};
  EXPECT_TRUE(GatherRows({ConstTensorView(nullptr, DType::kF32, {0, 8}),
                          ConstTensorView(nullptr, DType::kI32, {0}),
                          TensorView(nullptr, DType::kF32, {0, 8})},
                         context)
                  .ok());
  const Ids nowhere(6, -1);
  Floats y(12, 77);
  EXPECT_TRUE(CombineRows({ConstTensorView(nullptr, DType::kF32, {0, 4}),
                           ConstTensorView(nowhere.data(), {3, 2}),
                           {},
                           TensorView(y.data(), {3, 4})},
                          context)
                  .ok());
  EXPECT_EQ(y, Floats(12, 0.0f));
}

// The weight of a slot without a row is not read, and a NaN row stays in its own token.
TEST(RowsTest, NanStaysInItsToken) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SerialExecutor executor;
  Context context{&executor, nullptr, 0};
  const Floats rows = {1, 2, /**/ nan, nan, /**/ 3, 4, /**/ nan, nan};
  const Ids slot_row = {2, 0, -1, 0, /**/ 1, -1, -1, -1};
  const Floats weights = {1, 1, nan, 1, /**/ 1, 1, 1, 1};
  Floats y(4, 77);
  ASSERT_TRUE(
      CombineRows({ConstTensorView(rows.data(), {4, 2}), ConstTensorView(slot_row.data(), {2, 4}),
                   ConstTensorView(weights.data(), {2, 4}), TensorView(y.data(), {2, 2})},
                  context)
          .ok());
  EXPECT_EQ(y[0], 5);
  EXPECT_EQ(y[1], 8);
  EXPECT_TRUE(std::isnan(y[2]) && std::isnan(y[3]));
}

TEST(RowsTest, NamesTheIndexOutOfRange) {
  SerialExecutor executor;
  Context context{&executor, nullptr, 0};
  const Floats x(8);
  Floats out(8);
  const ConstTensorView x_view(x.data(), {4, 2});
  const TensorView out_view(out.data(), {4, 2});
  const Ids tokens = {0, 1, 4, -5};
  EXPECT_EQ(GatherRows({x_view, ConstTensorView(tokens.data(), {4}), out_view}, context).message(),
            "gather_rows: row_token[2]=4 is out of range; must be -1 or in [0, 4)");
  EXPECT_EQ(CombineRows({x_view, ConstTensorView(tokens.data(), {4, 1}), {}, out_view}, context)
                .message(),
            "combine_rows: slot_row[2]=4 is out of range; must be -1 or in [0, 4)");
  const Status misfit =
      CombineRows({x_view, ConstTensorView(tokens.data(), {2, 2}), {}, out_view}, context);
  EXPECT_EQ(misfit.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(misfit.message().find("f32[4,2]"), std::string::npos);
}

}  // namespace
}  // namespace anabranch
