// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The epilogues of softmax.h in every kernel table of this CPU, against double.
#include "tile/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tile/tile.h"

namespace anabranch::tile {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Exp2 is good to 2 ulp; its argument, below 100 in size here, to half a unit, which is 100 ln 2
// eps.
constexpr double kShareError = (2 + 70) * kEps;

class SoftmaxTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    kernels_ = FindKernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this CPU cannot run " << Name(GetParam());
  }
  std::vector<float> Normal(int64_t count, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  const KernelTable* kernels_ = nullptr;
  std::mt19937 random_{20261129};
};

// A tile with some of the ways to hide a key.
struct Case {
  int rows, first_column, columns;
  int64_t diagonal;
  bool segments;
};
constexpr Case kCases[] = {
    {6, 0, 64, kNoDiagonal, false}, {1, 0, 16, kNoDiagonal, false}, {5, 0, 48, 0, false},
    {6, 16, 64, 20, false},         {4, 0, 32, kNoDiagonal, true},  {6, 32, 64, 37, true},
    {3, 64, 64, 70, false},
};

struct Tile {
  Tile(const Case& c, std::vector<float> values) : scores(std::move(values)) {
    tile = {scores.data(), c.rows, c.first_column, c.columns, 0.7f, c.diagonal, nullptr, nullptr};
    for (int r = 0; r < c.rows; ++r) key_ids.push_back(r % 3);
    for (int q = 0; q < kPanelColumns; ++q) query_ids.push_back(q / 7 % 3);
    if (!c.segments) return;
    tile.key_segments = key_ids.data();
    tile.query_segments = query_ids.data();
  }
  bool Visible(int r, int c) const {
    if (c < r + tile.diagonal) return false;
    return tile.key_segments == nullptr || (key_ids[r] == query_ids[c] && key_ids[r] != 0);
  }
  std::vector<float> scores;
  std::vector<int32_t> key_ids, query_ids;
  ScoreTile tile;
};

TEST_P(SoftmaxTest, ScaleHidesKeysAndFindsTheLargest) {
  for (const Case& c : kCases) {
    Tile t(c, Normal(c.rows * kPanelColumns, 3));
    const std::vector<float> before = t.scores;
    std::vector<float> tops(kPanelColumns, -1.0f);
    kernels_->softmax_f32.scale(t.tile, tops.data());
    for (int q = 0; q < kPanelColumns; ++q) {
      float top = -1.0f;
      for (int r = 0; r < c.rows; ++r) {
        const int at = r * kPanelColumns + q;
        if (q < c.first_column || q >= c.columns) {
          ASSERT_EQ(t.scores[at], before[at]);
        } else {
          ASSERT_EQ(t.scores[at], t.Visible(r, q) ? 0.7f * before[at] : -kInfinity)
              << r << " " << q;
          top = std::max(top, t.scores[at]);
        }
      }
      ASSERT_EQ(tops[q], top);
    }
  }
}

// Element (key r, query c) of a panel that contracts over keys.
template <typename T>
float PanelAt(const std::vector<uint32_t>& panel, int r, int c) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<float>(panel[r * kPanelColumns + c]);
  return ToFloat(
      BF16{static_cast<uint16_t>(panel[r / 2 * kPanelColumns + c] >> (r % 2 == 0 ? 0 : 16))});
}

template <typename T>
void CheckShares(const KernelTable& kernels, const Case& c, std::vector<float> scores) {
  const double unit = sizeof(T) == 2 ? 1.0 / 256 : kEps;
  Tile t(c, std::move(scores));
  std::vector<float> tops(kPanelColumns, -kInfinity), sums(kPanelColumns, 2.0f);
  const Softmax& softmax = kernels.softmax(kDTypeOf<T>);
  softmax.scale(t.tile, tops.data());
  std::vector<uint32_t> panel(6 * kPanelColumns, 0x7fc07fc0u);
  softmax.shares(t.tile, tops.data(), sums.data(), panel.data());
  for (int q = 0; q < c.columns; ++q) {
    double sum = 2;
    for (int r = 0; r < c.rows; ++r) {
      const bool visible = q >= c.first_column && t.Visible(r, q);
      const double share =
          visible ? std::exp2(double{t.scores[r * kPanelColumns + q]} - tops[q]) : 0;
      ASSERT_NEAR(PanelAt<T>(panel, r, q), share, share * (unit + kShareError)) << r << " " << q;
      sum += share;
    }
    if (sizeof(T) == 2 && c.rows % 2 == 1) {
      ASSERT_EQ(PanelAt<T>(panel, c.rows, q), 0.0f);
    }
    ASSERT_NEAR(sums[q], sum, sum * (kShareError + 8 * kEps));
  }
}

TEST_P(SoftmaxTest, SharesMatchDouble) {
  for (const Case& c : kCases) {
    CheckShares<float>(*kernels_, c, Normal(c.rows * kPanelColumns, 10));
    CheckShares<BF16>(*kernels_, c, Normal(c.rows * kPanelColumns, 10));
  }
}

TEST_P(SoftmaxTest, AdvanceTakesSumsToTheNewMaximum) {
  std::vector<float> tops = {-kInfinity, -kInfinity, 1, 5, 1}, block = {-kInfinity, 3, 4, 2, 500};
  tops.resize(16), block.resize(16);
  std::vector<float> sums(16, 8.0f), accumulators(2 * kPanelColumns, 16.0f);
  kernels_->softmax_f32.advance(tops.data(), block.data(), sums.data(), accumulators.data(), 2, 16);
  const float factors[] = {0, 0, 0.125f, 1, 0};
  for (int c = 0; c < 5; ++c) {
    EXPECT_EQ(tops[c], c == 3 ? 5 : block[c]);
    EXPECT_EQ(sums[c], 8 * factors[c]);
    EXPECT_EQ(accumulators[kPanelColumns + c], 16 * factors[c]);
  }
  EXPECT_EQ(accumulators[16], 16.0f);
}

template <typename T>
void CheckGrads(const KernelTable& kernels, const Case& c, const std::vector<float>& scores,
                const std::vector<float>& share_grads, const std::vector<float>& means) {
  const double unit = sizeof(T) == 2 ? 1.0 / 256 : kEps;
  constexpr int kPerWord = 4 / sizeof(T), kPitch = kPanelColumns / kPerWord + 3;
  Tile t(c, scores);
  std::vector<float> normalisers(kPanelColumns, 40.0f);
  normalisers[c.columns - 1] = kInfinity;  // a query that sees nothing
  std::vector<uint32_t> share_rows(6 * kPitch), grad_rows(6 * kPitch),
      panel(6 * kPanelColumns, ~0u);
  kernels.softmax(kDTypeOf<T>)
      .grads(t.tile, share_grads.data(), normalisers.data(), means.data(), share_rows.data(),
             grad_rows.data(), kPitch, panel.data());
  for (int q = 0; q < c.columns; ++q) {
    for (int r = 0; r < c.rows; ++r) {
      const int at = r * kPanelColumns + q;
      const bool visible = q >= c.first_column && t.Visible(r, q);
      const double share =
          visible ? std::exp2(std::min(0.0, 0.7f * double{scores[at]} - normalisers[q])) : 0;
      const double slope = double{share_grads[at]} - means[q];
      const double bound = share * (unit + kShareError + 2 * kEps);
      ASSERT_NEAR(PanelAt<T>(panel, r, q), share * slope, bound * std::abs(slope) + kEps * share);
      if (q < c.first_column) continue;
      const T* row = reinterpret_cast<const T*>(grad_rows.data() + r * kPitch);
      ASSERT_EQ(ToFloat(row[q]), PanelAt<T>(panel, r, q));
      row = reinterpret_cast<const T*>(share_rows.data() + r * kPitch);
      ASSERT_NEAR(ToFloat(row[q]), share, bound) << r << " " << q;
    }
  }
}

TEST_P(SoftmaxTest, GradsMatchDouble) {
  for (const Case& c : kCases) {
    const int64_t count = c.rows * kPanelColumns;
    const std::vector<float> share_grads = Normal(count, 1), means = Normal(kPanelColumns, 1);
    std::vector<float> scores = Normal(count, 10);
    for (float& score : scores) score += 30;
    CheckGrads<float>(*kernels_, c, scores, share_grads, means);
    CheckGrads<BF16>(*kernels_, c, scores, share_grads, means);
  }
}

TEST_P(SoftmaxTest, NaNStaysInItsColumnAndHiddenValuesVanish) {
  for (const Softmax* softmax : {&kernels_->softmax_f32, &kernels_->softmax_bf16}) {
    // NaN with every payload bit set as well as the plain one.
    for (float bad : {kNaN, std::bit_cast<float>(0x7fffffffu)}) {
      Tile t({2, 0, 16, 1, false}, std::vector<float>(2 * kPanelColumns, 1.0f));
      t.scores[3] = bad;                  // key 0, seen by query 3
      t.scores[kPanelColumns + 1] = bad;  // key 1, hidden from query 1
      std::vector<float> tops(16, -kInfinity), sums(16, 0.0f);
      std::vector<uint32_t> panel(2 * kPanelColumns);
      softmax->scale(t.tile, tops.data());
      softmax->shares(t.tile, tops.data(), sums.data(), panel.data());
      EXPECT_EQ(sums[0], 0.0f);  // sees nothing
      EXPECT_EQ(sums[1], 1.0f);
      EXPECT_EQ(sums[2], 2.0f);
      EXPECT_TRUE(std::isnan(sums[3]));
    }
  }
}

TEST_P(SoftmaxTest, RowDotsMatchDouble) {
  for (int64_t columns : {1, 16, 37}) {
    const std::vector<float> a = Normal(3 * columns, 1), b = Normal(3 * columns, 1);
    const void* a_rows[] = {&a[0], &a[columns], &a[2 * columns]};
    const void* b_rows[] = {&b[0], &b[columns], &b[2 * columns]};
    float out[3];
    kernels_->softmax_f32.row_dots(a_rows, b_rows, 3, columns, out);
    for (int r = 0; r < 3; ++r) {
      double sum = 0, magnitude = 0;
      for (int64_t c = 0; c < columns; ++c) {
        sum += double{a[r * columns + c]} * b[r * columns + c];
        magnitude += std::abs(double{a[r * columns + c]} * b[r * columns + c]);
      }
      EXPECT_NEAR(out[r], sum, (columns + 1) * kEps * magnitude);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, SoftmaxTest,
                         testing::Values(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace anabranch::tile
