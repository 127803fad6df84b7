// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Every kernel table of this CPU against scalar double precision on the same inputs.
#include "tile/tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"

namespace anabranch::tile {
namespace {

constexpr float kEps = std::numeric_limits<float>::epsilon();
constexpr double kBf16Eps = 1.0 / 256;  // half a unit in the last place of bf16, relative
constexpr double kBf16Tiny = 0x1p-133;  // the spacing of bf16's subnormals

class TileTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    kernels_ = FindKernels(GetParam());
    if (kernels_ == nullptr) GTEST_SKIP() << "this CPU cannot run " << Name(GetParam());
  }
  float Uniform() { return std::uniform_real_distribution<float>(-1, 1)(random_); }
  template <typename T>
  std::vector<T> Random(int64_t count) {
    std::vector<T> values(count);
    for (T& value : values) value = FromFloat<T>(Uniform());
    return values;
  }

  const KernelTable* kernels_ = nullptr;
  std::mt19937 random_{20261129};
};

template <typename T>
std::vector<const void*> RowPointers(const std::vector<T>& matrix, int64_t rows, int64_t pitch) {
  std::vector<const void*> pointers;
  for (int64_t r = 0; r < rows; ++r) pointers.push_back(matrix.data() + r * pitch);
  return pointers;
}

template <typename T>
float WordElement(const std::vector<uint32_t>& words, int64_t index, int64_t half) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<float>(words[index]);
  } else {
    return ToFloat(BF16{static_cast<uint16_t>(words[index] >> (16 * half))});
  }
}

// out = a b for one tile, from plain matrices through pack and product, against double.
template <typename From, typename To>
void CheckProduct(const KernelTable& kernels, const std::vector<To>& a, const std::vector<From>& b,
                  int rows, int64_t k, int columns, bool transposed) {
  constexpr int kPerWord = 4 / sizeof(To);
  const int64_t words = WordsOf(kDTypeOf<To>, k);
  std::vector<uint32_t> panel((words + 1) * kPanelColumns, 0x7fc07fc0u);  // NaN where not written
  const Packer& pack = kernels.pack(kDTypeOf<From>, kDTypeOf<To>);
  if (transposed) {  // b is [columns, k]
    pack.transposed(RowPointers(b, columns, k).data(), columns, 0, k, panel.data());
  } else {  // b is [k, columns]
    pack.rows(RowPointers(b, k, columns).data(), k, 0, columns, kPanelColumns, panel.data());
  }
  for (int64_t w = 0; w < words; ++w) {
    for (int c = columns; c < kPanelColumns; ++c) ASSERT_EQ(panel[w * kPanelColumns + c], 0u);
  }
  std::vector<float> out(rows * kPanelColumns, 5.0f);
  const int64_t pitch = words * kPerWord;  // even rows: a has a zero in the last odd place
  const std::vector<const void*> a_rows = RowPointers(a, rows, pitch);
  const ProductFn product = kernels.product(kDTypeOf<To>);
  product(a_rows.data(), rows, words, panel.data(), columns, out.data(), kPanelColumns,
          Store::kWrite);
  const std::vector<float> written = out;
  product(a_rows.data(), rows, words, panel.data(), columns, out.data(), kPanelColumns,
          Store::kAccumulate);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      double exact = 0, magnitude = 0;
      for (int64_t i = 0; i < k; ++i) {
        const From raw = transposed ? b[c * k + i] : b[i * columns + c];
        const double y = ToFloat(FromFloat<To>(ToFloat(raw)));
        exact += ToFloat(a[r * pitch + i]) * y;
        magnitude += std::abs(ToFloat(a[r * pitch + i]) * y);
      }
      const double bound = (k + 1) * kEps * magnitude + 1e-37;
      const int64_t at = r * kPanelColumns + c;
      ASSERT_NEAR(written[at], exact, bound) << "row " << r << " column " << c << " k " << k;
      ASSERT_EQ(out[at], written[at] + written[at]);
    }
  }
}

TEST_P(TileTest, ProductMatchesDoubleOnEveryShape) {
  for (int64_t k : {1, 2, 3, 7, 16, 31, 32, 33, 65, 130}) {
    for (int columns : {1, 3, 15, 16, 17, 31, 32, 33, 47, 48, 50, 63, 64}) {
      for (int rows = 1; rows <= kTileRows; ++rows) {
        const int64_t even = k + k % 2;
        std::vector<BF16> a16 = Random<BF16>(rows * even);
        if (k % 2 == 1) {
          for (int r = 0; r < rows; ++r) a16[r * even + k] = BF16{};
        }
        const std::vector<float> a32 = Random<float>(rows * k), b32 = Random<float>(k * columns);
        const std::vector<BF16> b16 = Random<BF16>(k * columns);
        for (bool transposed : {false, true}) {
          CheckProduct<float, float>(*kernels_, a32, b32, rows, k, columns, transposed);
          CheckProduct<float, BF16>(*kernels_, a16, b32, rows, k, columns, transposed);
          CheckProduct<BF16, BF16>(*kernels_, a16, b16, rows, k, columns, transposed);
        }
      }
    }
  }
}

// An element's bits depend neither on how many rows share its tile nor on the panel's width.
TEST_P(TileTest, BitsDoNotDependOnTheTile) {
  const int64_t k = 94;
  const std::vector<BF16> a = Random<BF16>(kTileRows * k), b = Random<BF16>(k * kPanelColumns);
  std::vector<uint32_t> panel(k / 2 * kPanelColumns);
  kernels_->pack_bf16_bf16.rows(RowPointers(b, k, kPanelColumns).data(), k, 0, kPanelColumns,
                                kPanelColumns, panel.data());
  const auto rows = RowPointers(a, kTileRows, k);
  std::vector<float> whole(kTileRows * kPanelColumns), part(kTileRows * kPanelColumns);
  kernels_->product_bf16(rows.data(), kTileRows, k / 2, panel.data(), kPanelColumns, whole.data(),
                         kPanelColumns, Store::kWrite);
  for (int r = 0; r < kTileRows; ++r) {
    for (int columns : {16, 32, 48, 64}) {
      kernels_->product_bf16(rows.data() + r, 1, k / 2, panel.data(), columns, part.data(),
                             kPanelColumns, Store::kWrite);
      EXPECT_EQ(std::memcmp(part.data(), &whole[r * kPanelColumns], columns * sizeof(float)), 0);
    }
  }
}

TEST_P(TileTest, AskingForMemoryAheadChangesNoBit) {
  const int64_t k = 94;
  const std::vector<BF16> a = Random<BF16>(kTileRows * k), b = Random<BF16>(k * kPanelColumns);
  std::vector<uint32_t> panel(k / 2 * kPanelColumns);
  kernels_->pack_bf16_bf16.rows(RowPointers(b, k, kPanelColumns).data(), k, 0, kPanelColumns,
                                kPanelColumns, panel.data());
  const auto pointers = RowPointers(a, kTileRows, k);
  for (int rows = 1; rows <= kTileRows; ++rows) {
    std::vector<float> plain(kTileRows * kPanelColumns), ahead(kTileRows * kPanelColumns);
    kernels_->product_bf16(pointers.data(), rows, k / 2, panel.data(), kPanelColumns, plain.data(),
                           kPanelColumns, Store::kWrite);
    kernels_->product_bf16_ahead(pointers.data(), rows, k / 2, panel.data(), ahead.data(),
                                 b.data());
    EXPECT_EQ(plain, ahead) << rows;
  }
}

TEST_P(TileTest, StreamEqualsWrite) {
  const int64_t k = 40;
  const std::vector<float> a = Random<float>(kTileRows * k), b = Random<float>(k * kPanelColumns);
  std::vector<uint32_t> panel(k * kPanelColumns);
  kernels_->pack_f32_f32.rows(RowPointers(b, k, kPanelColumns).data(), k, 0, kPanelColumns,
                              kPanelColumns, panel.data());
  alignas(64) float streamed[kTileRows * kPanelColumns];
  alignas(64) float written[kTileRows * kPanelColumns];
  for (const auto& [store, out] :
       {std::pair{Store::kStream, streamed}, std::pair{Store::kWrite, written}}) {
    kernels_->product_f32(RowPointers(a, kTileRows, k).data(), kTileRows, k, panel.data(),
                          kPanelColumns, out, kPanelColumns, store);
  }
  StreamFence();
  EXPECT_EQ(std::memcmp(streamed, written, sizeof(written)), 0);
}

// One row of values times the identity: every vector holds a subnormal, or none does.
TEST_P(TileTest, StreamedBf16EqualsTheStoreEpilogue) {
  for (float smallest : {1.0f, 1e-39f}) {
    const int64_t k = kPanelColumns;
    std::vector<float> a = Random<float>(kTileRows * k), b(k * kPanelColumns);
    for (int64_t i = 0; i < k; ++i) b[i * kPanelColumns + i] = 1;
    for (int64_t i = 0; i < kTileRows * k; i += 3) a[i] *= smallest;
    std::vector<uint32_t> panel(k * kPanelColumns);
    kernels_->pack_f32_f32.rows(RowPointers(b, k, kPanelColumns).data(), k, 0, kPanelColumns,
                                kPanelColumns, panel.data());
    const auto rows = RowPointers(a, kTileRows, k);
    float tile[kTileRows * kPanelColumns];
    alignas(64) BF16 streamed[kTileRows * kPanelColumns], stored[kTileRows * kPanelColumns];
    kernels_->product_f32(rows.data(), kTileRows, k, panel.data(), kPanelColumns, tile,
                          kPanelColumns, Store::kWrite);
    kernels_->product_f32(rows.data(), kTileRows, k, panel.data(), kPanelColumns, streamed,
                          kPanelColumns, Store::kStreamBf16);
    StreamFence();
    void* out[kTileRows];
    for (int r = 0; r < kTileRows; ++r) out[r] = stored + r * kPanelColumns;
    kernels_->epilogue_bf16.store(tile, kTileRows, kPanelColumns, out);
    EXPECT_EQ(std::memcmp(streamed, stored, sizeof(stored)), 0) << smallest;
  }
}

template <typename T>
void CheckTranspose(const KernelTable& kernels, const std::vector<T>& matrix, int64_t num_k,
                    int64_t pitch, int64_t first, int64_t columns) {
  constexpr int kPerWord = 4 / sizeof(T);
  const int64_t words = WordsOf(kDTypeOf<T>, num_k), out_pitch = (words + 15) / 16 * 16;
  std::vector<uint32_t> out(columns * out_pitch, 0xffffffffu);
  kernels.pack(kDTypeOf<T>, kDTypeOf<T>)
      .transpose(RowPointers(matrix, num_k, pitch).data(), num_k, first, columns, out.data(),
                 out_pitch);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t i = 0; i < words * kPerWord; ++i) {
      const float expected = i < num_k ? ToFloat(matrix[i * pitch + first + c]) : 0.0f;
      ASSERT_EQ(WordElement<T>(out, c * out_pitch + i / kPerWord, i % kPerWord), expected);
    }
  }
}

TEST_P(TileTest, TransposeGivesTheWordsOfColumns) {
  for (int64_t num_k : {1, 2, 15, 33, 64}) {
    for (int64_t columns : {1, 16, 37}) {
      CheckTranspose(*kernels_, Random<float>(num_k * 40), num_k, 40, 3, columns);
      CheckTranspose(*kernels_, Random<BF16>(num_k * 40), num_k, 40, 3, columns);
    }
  }
}

// The value and slopes of an activation in double.
std::array<double, 3> ExactActivation(Activation activation, double gate, double up) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (activation) {
    case Activation::kSwiglu: {
      const double s = sigmoid(gate);
      return {gate * s * up, up * s * (1 + gate * (1 - s)), gate * s};
    }
    case Activation::kGeglu: {
      const double scale = std::sqrt(2 / M_PI);
      const double t = std::tanh(scale * (gate + 0.044715 * gate * gate * gate));
      const double slope =
          0.5 * (1 + t) + 0.5 * gate * (1 - t * t) * scale * (1 + 3 * 0.044715 * gate * gate);
      return {0.5 * gate * (1 + t) * up, slope * up, 0.5 * gate * (1 + t)};
    }
    case Activation::kReglu:
      return {std::max(gate, 0.0) * up, gate > 0 ? up : 0, std::max(gate, 0.0)};
    case Activation::kClampedSwiglu: {
      const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0) + 1;
      const double s = sigmoid(1.702 * g);
      return {u * g * s, gate <= 7 ? u * (s + 1.702 * g * s * (1 - s)) : 0,
              std::abs(up) <= 7 ? g * s : 0};
    }
  }
  return {};
}

constexpr Activation kActivations[] = {Activation::kSwiglu, Activation::kGeglu, Activation::kReglu,
                                       Activation::kClampedSwiglu};

template <typename T>
void CheckActivation(const KernelTable& kernels, Activation activation, int columns,
                     std::mt19937& random) {
  const double rounding = sizeof(T) == 2 ? kBf16Eps : kEps;
  std::normal_distribution<float> normal(0, 4);
  const int rows = 5;
  std::vector<float> tile(rows * kPanelColumns), grad(rows * kPanelColumns), weights(rows);
  for (float& x : tile) x = normal(random);
  for (float& x : grad) x = normal(random);
  for (float& x : weights) x = normal(random);
  std::vector<std::vector<T>> saved(6 * rows, std::vector<T>(columns));
  std::vector<void*> pointers;
  for (auto& row : saved) pointers.push_back(row.data());
  void** p = pointers.data();
  const Epilogue& epilogue = kernels.epilogue(kDTypeOf<T>);
  epilogue.activate(activation, tile.data(), rows, columns, p, p + rows, p + 2 * rows);
  std::vector<float> weight_grads(rows);
  epilogue.activate_grad(activation, grad.data(), rows, columns, weights.data(), p, p + rows,
                         p + 3 * rows, p + 4 * rows, p + 5 * rows, weight_grads.data());
  for (int r = 0; r < rows; ++r) {
    double weight_grad = 0, magnitude = 0;
    for (int c = 0; c < columns; ++c) {
      const int64_t at = r * kPanelColumns + c;
      const double gate = ToFloat(saved[r][c]), up = ToFloat(saved[rows + r][c]);
      ASSERT_EQ(ToFloat(FromFloat<T>(tile[at])), gate);
      ASSERT_EQ(ToFloat(FromFloat<T>(tile[at + kGateColumns])), up);
      const auto [value, gate_slope, up_slope] = ExactActivation(activation, gate, up);
      const double hidden = ToFloat(saved[2 * rows + r][c]), w = weights[r];
      // exp is good to 2 ulp and a handful of f32 operations follow; it is clamped where its result
      // would leave the normal range, hence the absolute term.
      const auto near = [&](double got, double want, double scale) {
        EXPECT_NEAR(got, want, rounding * std::abs(want) + (16 * kEps + 1e-37) * scale + kBf16Tiny)
            << gate << " " << up;
      };
      const double size = (1 + std::abs(gate)) * (1 + std::abs(up));
      near(hidden, value, size);
      near(ToFloat(saved[3 * rows + r][c]), w * grad[at] * gate_slope,
           std::abs(w * grad[at]) * size);
      near(ToFloat(saved[4 * rows + r][c]), w * grad[at] * up_slope, std::abs(w * grad[at]) * size);
      near(ToFloat(saved[5 * rows + r][c]), w * hidden, std::abs(w * hidden));
      weight_grad += grad[at] * hidden;
      magnitude += std::abs(grad[at] * hidden);
    }
    EXPECT_NEAR(weight_grads[r], weight_grad, (columns + 1) * kEps * magnitude);
  }
}

TEST_P(TileTest, ActivationsAndTheirGradientsMatchDouble) {
  for (Activation activation : kActivations) {
    for (int columns : {1, 7, 16, 17, 31, 32}) {
      CheckActivation<float>(*kernels_, activation, columns, random_);
      CheckActivation<BF16>(*kernels_, activation, columns, random_);
    }
  }
}

TEST_P(TileTest, ActivationsKeepNaNAndSurviveExtremes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float tile[kPanelColumns] = {nan, 1e4f, -1e4f, 0.0f};
  for (int c = 0; c < 4; ++c) tile[kGateColumns + c] = 1.0f;
  for (Activation activation : kActivations) {
    float hidden[4];
    void* rows[] = {hidden};
    kernels_->epilogue_f32.activate(activation, tile, 1, 4, nullptr, nullptr, rows);
    EXPECT_TRUE(std::isnan(hidden[0]));
    EXPECT_TRUE(std::isfinite(hidden[1]));
    EXPECT_NEAR(hidden[2], 0.0f, 1e-30f);
    EXPECT_EQ(hidden[3], 0.0f);
  }
}

template <typename T>
void CheckCombine(const KernelTable& kernels, int columns, const std::vector<float>& tile) {
  const int rows = 3;
  const float weights[rows] = {0.3f, -2.0f, 1.0f};
  std::vector<std::vector<float>> sums(rows, std::vector<float>(columns + 1, 7.0f));
  std::vector<std::vector<T>> stored(rows, std::vector<T>(columns + 1, FromFloat<T>(3.0f)));
  float* accumulators[] = {sums[0].data(), sums[1].data(), sums[2].data()};
  void* out[] = {stored[0].data(), stored[1].data(), stored[2].data()};
  const Epilogue& epilogue = kernels.epilogue(kDTypeOf<T>);
  epilogue.combine(tile.data(), rows, columns, weights, accumulators);
  epilogue.store_weighted(tile.data(), rows, columns, weights, out);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      const T row = FromFloat<T>(weights[r] * tile[r * kPanelColumns + c]);
      EXPECT_EQ(ToFloat(stored[r][c]), ToFloat(row));
      EXPECT_EQ(sums[r][c], 7.0f + ToFloat(row));
    }
    EXPECT_EQ(sums[r][columns], 7.0f);  // nothing past the columns
    EXPECT_EQ(ToFloat(stored[r][columns]), 3.0f);
  }
  epilogue.store(tile.data(), rows, columns, out);
  for (int c = 0; c < columns; ++c) {
    EXPECT_EQ(ToFloat(stored[2][c]), ToFloat(FromFloat<T>(tile[2 * kPanelColumns + c])));
  }
}

TEST_P(TileTest, CombineRoundsTheRowOnceThenAdds) {
  const std::vector<float> tile = Random<float>(kTileRows * kPanelColumns);
  for (int columns : {1, 5, 16, 23, 64}) {
    CheckCombine<float>(*kernels_, columns, tile);
    CheckCombine<BF16>(*kernels_, columns, tile);
  }
}

template <typename T>
void CheckStream(const Epilogue& epilogue, const std::vector<float>& tile) {
  alignas(64) T streamed[kTileRows][kPanelColumns];
  alignas(64) T stored[kTileRows][kPanelColumns];
  void* stream_rows[kTileRows];
  void* store_rows[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    stream_rows[r] = streamed[r];
    store_rows[r] = stored[r];
  }
  epilogue.stream(tile.data(), kTileRows, stream_rows);
  StreamFence();
  epilogue.store(tile.data(), kTileRows, kPanelColumns, store_rows);
  EXPECT_EQ(std::memcmp(streamed, stored, sizeof(stored)), 0);
}

TEST_P(TileTest, StreamedRowsEqualStoredRows) {
  const std::vector<float> tile = Random<float>(kTileRows * kPanelColumns);
  CheckStream<float>(kernels_->epilogue_f32, tile);
  CheckStream<BF16>(kernels_->epilogue_bf16, tile);
}

TEST_P(TileTest, RoundingToBf16IsNearestEvenOnEdgeValues) {
  const float inf = std::numeric_limits<float>::infinity();
  alignas(64) float tile[kPanelColumns] = {1.0f + 1.0f / 256,
                                           1.0f + 3.0f / 256,
                                           inf,
                                           -inf,
                                           std::numeric_limits<float>::max(),
                                           1e-40f,
                                           -0.0f,
                                           std::numeric_limits<float>::quiet_NaN()};
  BF16 out[16];
  void* rows[] = {out};
  // With a subnormal among the values and without: an instruction set may treat them apart.
  for (float small : {1e-40f, 1e-30f}) {
    tile[5] = small;
    kernels_->epilogue_bf16.store(tile, 1, 16, rows);
    for (int c = 0; c < 16; ++c) EXPECT_EQ(out[c].bits, ToBF16(tile[c]).bits) << "column " << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, TileTest,
                         testing::Values(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(KernelsTest, SelectedTableIsTheForcedOrTheBest) {
  std::string error;
  EXPECT_EQ(Kernels().isa, SelectIsa(&error));
  EXPECT_EQ(ForcedIsaError(), error);
}

}  // namespace
}  // namespace anabranch::tile
