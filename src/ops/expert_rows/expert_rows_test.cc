// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Every operation against its oracle, in both row types, and the same bits for any number of
// threads.
#include "ops/expert_rows/expert_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/element.h"
#include "base/executor.h"

namespace anabranch {
namespace {

using tile::Activation;

// Elements of either row type.
struct Rows {
  Rows(int64_t rows, int64_t columns, DType type)
      : wide(rows * columns, 7.0f), narrow(rows * columns, ToBF16(7.0f)) {
    void* data = type == DType::kBF16 ? static_cast<void*>(narrow.data()) : wide.data();
    view = TensorView(data, type, {rows, columns});
  }
  Rows(int64_t rows, int64_t columns, DType type, float spread, std::mt19937* random)
      : Rows(rows, columns, type) {
    std::normal_distribution<float> normal(0, spread);
    for (int64_t i = 0; i < view.num_elements(); ++i) Store(view, i, normal(*random));
  }
  bool operator==(const Rows& other) const {
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      if (Load(view, i) != Load(other.view, i)) return false;
    }
    return true;
  }
  std::vector<float> wide;
  std::vector<BF16> narrow;
  TensorView view;
};

// Both are rounded: near a tie they may fall one step of the type apart.
void ExpectNear(const TensorView& got, const TensorView& want, double arithmetic,
                const std::string& what) {
  const double step = got.dtype() == DType::kBF16 ? 0x1p-7 : 0x1p-23;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    const double expected = Load(want, i);
    ASSERT_NEAR(Load(got, i), expected, step * std::abs(expected) + arithmetic) << what << i;
  }
}

constexpr int64_t kShapes[][2] = {{0, 8}, {1, 1}, {3, 31}, {7, 64}, {130, 129}, {5, 5000}};
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

template <typename Args>
void Call(Status (*op)(const Args&, const Context&), const Args& args, int threads) {
  ThreadExecutor executor(threads);
  const Status status = op(args, {&executor, nullptr, 0});
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST(ExpertRowsTest, ActivationsAreTheReferences) {
  std::mt19937 random(1);
  for (auto [rows, columns] : kShapes) {
    for (DType type : kTypes) {
      const Rows gate(rows, columns, type, 4, &random), up(rows, columns, type, 4, &random);
      const Rows grad(rows, columns, type, 1, &random);
      for (int code = 0; code < 4; ++code) {
        const auto activation = static_cast<Activation>(code);
        Rows hidden(rows, columns, type), one(rows, columns, type), exact(rows, columns, type);
        Call<ActivateRowsArgs>(ActivateRows, {activation, gate.view, up.view, hidden.view}, 3);
        Call<ActivateRowsArgs>(ActivateRows, {activation, gate.view, up.view, one.view}, 1);
        ActivateRowsReference({activation, gate.view, up.view, exact.view});
        EXPECT_TRUE(hidden == one);
        ExpectNear(hidden.view, exact.view, 2e-5, "hidden ");
        Rows by_gate(rows, columns, type), by_up(rows, columns, type);
        Call<ActivateRowsGradArgs>(
            ActivateRowsGrad, {activation, gate.view, up.view, grad.view, by_gate.view, by_up.view},
            3);
        Rows want_gate(rows, columns, type), want_up(rows, columns, type);
        ActivateRowsGradReference(
            {activation, gate.view, up.view, grad.view, want_gate.view, want_up.view});
        ExpectNear(by_gate.view, want_gate.view, 5e-5, "gate_grad ");
        ExpectNear(by_up.view, want_up.view, 5e-5, "up_grad ");
      }
    }
  }
}

TEST(ExpertRowsTest, WeightsAreTheReferences) {
  std::mt19937 random(2);
  for (auto [rows, columns] : kShapes) {
    for (DType type : kTypes) {
      Rows weights(rows, 1, DType::kF32, 1, &random);
      const TensorView weight(weights.wide.data(), {rows});
      const Rows x(rows, columns, DType::kF32, 1, &random), grad(rows, columns, type, 1, &random);
      Rows out(rows, columns, type), exact(rows, columns, type);
      Call<WeighRowsArgs>(WeighRows, {weight, x.view, out.view}, 3);
      WeighRowsReference({weight, x.view, exact.view});
      EXPECT_TRUE(out == exact);  // one product, rounded
      Rows x_grad(rows, columns, DType::kF32), exact_grad(rows, columns, DType::kF32);
      std::vector<float> sums(rows, 7.0f), exact_sums(rows);
      const TensorView sum(sums.data(), {rows}), exact_sum(exact_sums.data(), {rows});
      Call<WeighRowsGradArgs>(WeighRowsGrad, {weight, x.view, grad.view, sum, x_grad.view}, 3);
      WeighRowsGradReference({weight, x.view, grad.view, exact_sum, exact_grad.view});
      EXPECT_TRUE(x_grad == exact_grad);
      ExpectNear(sum, exact_sum, 1e-6 * static_cast<double>(columns), "weights_grad ");
    }
  }
}

TEST(ExpertRowsTest, ErrorsNameTheShapes) {
  SerialExecutor executor;
  const Context context = {&executor, nullptr, 0};
  const Rows a(2, 3, DType::kBF16), b(3, 2, DType::kBF16), c(2, 3, DType::kF32);
  Status status = ActivateRows({Activation::kSwiglu, a.view, b.view, a.view}, context);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("up is bf16[3,2]"), std::string::npos) << status.message();
  status = ActivateRows({Activation::kSwiglu, a.view, a.view, c.view}, context);
  EXPECT_NE(status.message().find("hidden is f32[2,3]"), std::string::npos) << status.message();
  const TensorView weights(const_cast<float*>(c.wide.data()), {3});
  status = WeighRows({weights, c.view, a.view}, context);
  EXPECT_NE(status.message().find("weights is f32[3]"), std::string::npos) << status.message();
  status = WeighRows({weights, a.view, a.view}, context);
  EXPECT_NE(status.message().find("x is bf16[2,3]"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace anabranch
