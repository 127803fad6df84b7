// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The epilogues of loss.h in every kernel table of this CPU, against double.
#include "tile/loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "tile/tile.h"

namespace anabranch::tile {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();

class LossTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    kernels_ = FindKernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this CPU cannot run " << Name(GetParam());
  }
  std::vector<float> Tile(int rows, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> tile(rows * kPanelColumns);
    for (float& value : tile) value = normal(random_);
    return tile;
  }

  const KernelTable* kernels_ = nullptr;
  std::mt19937 random_{20261129};
};

std::vector<float> NewStates(int rows) {
  std::vector<float> states(rows * kLossStateFloats, 0.0f);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < kLossLanes; ++i) states[r * kLossStateFloats + i] = kLossFloor;
  }
  return states;
}

// Several tiles, the last one narrow. A sum of n exponentials, each off by a few units (the
// argument's rounding grows with the spread), is rescaled once per tile.
TEST_P(LossTest, FoldedTilesGiveTheLogSumExp) {
  for (float spread : {0.1f, 3.0f, 40.0f}) {
    for (int last : {1, 5, 15, 16, 17, 31, 33, 48, 63, 64}) {
      for (int rows = 1; rows <= kTileRows; ++rows) {
        std::vector<float> states = NewStates(rows);
        std::vector<std::vector<double>> logits(rows);
        for (int columns : {64, 64, last}) {
          const std::vector<float> tile = Tile(rows, spread);
          kernels_->loss.fold(tile.data(), rows, columns, states.data());
          for (int r = 0; r < rows; ++r) {
            const float* row = &tile[r * kPanelColumns];
            logits[r].insert(logits[r].end(), row, row + columns);
          }
        }
        std::vector<float> maxima(rows), sums(rows);
        kernels_->loss.reduce(states.data(), rows, maxima.data(), sums.data());
        for (int r = 0; r < rows; ++r) {
          const double top = *std::max_element(logits[r].begin(), logits[r].end());
          double sum = 0;
          for (double x : logits[r]) sum += std::exp(x - top);
          EXPECT_EQ(maxima[r], static_cast<float>(top));
          EXPECT_NEAR(sums[r], sum, sum * kEps * (16 + 8 * spread));
        }
      }
    }
  }
}

TEST_P(LossTest, FoldKeepsNaNAndGivesMinusInfinityNoShare) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> tile(2 * kPanelColumns, -infinity), states = NewStates(2);
  tile[20] = 3.0f;
  tile[kPanelColumns + 20] = std::numeric_limits<float>::quiet_NaN();
  kernels_->loss.fold(tile.data(), 2, 40, states.data());
  float maxima[2], sums[2];
  kernels_->loss.reduce(states.data(), 2, maxima, sums);
  EXPECT_EQ(maxima[0], 3.0f);
  EXPECT_EQ(sums[0], 1.0f);
  EXPECT_TRUE(std::isnan(sums[1]));
}

template <typename T>
void CheckGrad(const KernelTable& kernels, const std::vector<float>& tile, int columns) {
  const int rows = static_cast<int>(tile.size()) / kPanelColumns;
  const int64_t first_column = 640;
  const int stored = columns + columns % 2;
  std::vector<LossRow> loss_rows(rows);
  std::vector<std::vector<T>> out(rows, std::vector<T>(stored + 1, FromFloat<T>(3.0f)));
  std::vector<void*> pointers;
  for (int r = 0; r < rows; ++r) {
    // Rows 0 and 1 have their label before and after the tile.
    const int32_t label = r == 0 ? 639 : r == 1 ? 640 + columns : 640 + (r * 13) % columns;
    loss_rows[r] = {4.0f + r, 0.5f * r - 1, 0.25f * r - 0.5f, label};
    pointers.push_back(out[r].data());
  }
  const auto grad = sizeof(T) == 2 ? kernels.loss.grad_bf16 : kernels.loss.grad_f32;
  grad(tile.data(), rows, first_column, columns, stored, loss_rows.data(), pointers.data());
  for (int r = 0; r < rows; ++r) {
    const LossRow& row = loss_rows[r];
    for (int c = 0; c < columns; ++c) {
      const double share = row.share * std::exp(tile[r * kPanelColumns + c] - row.normaliser);
      const double loss = row.label == first_column + c ? row.cotangent : 0;
      const double want = share - loss;
      const double unit = sizeof(T) == 2 ? 1.0 / 256 : kEps;
      // The exponent is off by its argument's rounding: at most 16 * eps / 2 here.
      const double bound = std::abs(want) * unit + 12 * kEps * (std::abs(share) + std::abs(loss));
      EXPECT_NEAR(ToFloat(out[r][c]), want, bound + 1e-37) << r << " " << c;
    }
    for (int c = columns; c < stored; ++c) EXPECT_EQ(ToFloat(out[r][c]), 0.0f);
    EXPECT_EQ(ToFloat(out[r][stored]), 3.0f);  // nothing past them
  }
}

TEST_P(LossTest, GradientMatchesDouble) {
  for (int columns : {1, 2, 7, 15, 16, 17, 33, 47, 63, 64}) {
    CheckGrad<float>(*kernels_, Tile(kTileRows, 2), columns);
    CheckGrad<BF16>(*kernels_, Tile(kTileRows, 2), columns);
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, LossTest,
                         testing::Values(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace anabranch::tile
