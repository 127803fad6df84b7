// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Products with coded weights against: quantise, dequantise to bf16, multiply. Bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/executor.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/quantize/quantize.h"

namespace anabranch {
namespace {

constexpr int64_t kExperts = 3, kK = 84, kN = 150;
const std::vector<int32_t> kSizes = {9, 0, 21};
constexpr int64_t kRows = 32;  // the last two belong to no group

template <typename Args>
Status Call(Status (*op)(const Args&, const Context&), int64_t bytes, const Args& args) {
  ThreadExecutor executor(2);
  std::vector<std::byte> scratch(bytes + 64);
  auto* aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  return op(args, {&executor, aligned, bytes});
}

// Weights [E, K, N]: as codes, and as the bf16 values that those stand for.
struct Weights {
  Weights(QuantizedFormat with, int axis) : format(with) {
    const FormatFacts facts = FactsOf(format);
    const int64_t block_rows = facts.square || axis == 0 ? facts.block : 1;
    const int64_t block_columns = facts.square || axis == 1 ? facts.block : 1;
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 0.1f);
    for (float& w : source) w = normal(random);
    coding = {format, axis,
              ConstTensorView(scale.data(),
                              facts.scale == ScaleKind::kE8m0   ? DType::kE8M0
                              : facts.scale == ScaleKind::kE4m3 ? DType::kE4M3
                                                                : DType::kF32,
                              {kExperts * CeilDiv(kK, block_rows), CeilDiv(kN, block_columns)})};
    QuantizeOptions options;
    options.format = format;
    options.axis = axis;
    options.amax_per_group = true;
    const ConstTensorView groups(rows.data(), {kExperts});
    const TensorView scales(scale.data(), coding.scale.dtype(),
                            {coding.scale.size(0), coding.scale.size(1)});
    const TensorView data(codes.data(), {kExperts * kK, kN});
    QuantizeArgs quantize = {options,
                             ConstTensorView(source.data(), {kExperts * kK, kN}),
                             groups,
                             {},
                             data,
                             scales,
                             TensorView(tensor_scale.data(), {kExperts}),
                             TensorView(offsets.data(), {kExperts + 1})};
    status = Call(Quantize, QuantizeScratchBytes(quantize), quantize);
    tensor_scale.assign(kExperts, 1);  // products leave it out
    const DequantizeArgs back = {options, data,
                                 scales,  ConstTensorView(tensor_scale.data(), {kExperts}),
                                 groups,  TensorView(values.data(), {kExperts * kK, kN})};
    if (status.ok()) status = Call(Dequantize, DequantizeScratchBytes(back), back);
  }
  ConstTensorView Codes() const { return {codes.data(), {kExperts, kK, kN}}; }
  ConstTensorView Values() const { return {values.data(), {kExperts, kK, kN}}; }

  QuantizedFormat format;
  std::vector<int32_t> rows = std::vector<int32_t>(kExperts, kK);
  std::vector<float> source = std::vector<float>(kExperts * kK * kN);
  std::vector<uint8_t> codes = std::vector<uint8_t>(kExperts * kK * kN);
  std::vector<uint8_t> scale = std::vector<uint8_t>(4 * kExperts * kK * kN);
  std::vector<float> tensor_scale = std::vector<float>(kExperts);
  std::vector<int32_t> offsets = std::vector<int32_t>(kExperts + 1);
  std::vector<BF16> values = std::vector<BF16>(kExperts * kK * kN);
  WeightCoding coding;
  Status status;
};

std::vector<BF16> RandomRows(int64_t columns) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<BF16> rows(kRows * columns);
  for (BF16& value : rows) value = ToBF16(normal(random));
  return rows;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename T>
void ExpectSameProducts(const Weights& w, const std::string& what) {
  const std::vector<BF16> x = RandomRows(kK), dy = RandomRows(kN);
  const ConstTensorView sizes(kSizes.data(), {kExperts});
  std::vector<T> y(kRows * kN, T{}), want_y = y, dx(kRows * kK, T{}), want_dx = dx;
  const ConstTensorView x_view(x.data(), {kRows, kK}), dy_view(dy.data(), {kRows, kN});

  const GroupedGemmArgs plain = {x_view, w.Values(), sizes, TensorView(want_y.data(), {kRows, kN})};
  ASSERT_TRUE(Call(GroupedGemm, GroupedGemmScratchBytes(plain, 2), plain).ok());
  const GroupedGemmCodedArgs coded = {{x_view, w.Codes(), sizes, TensorView(y.data(), {kRows, kN})},
                                      w.coding};
  ASSERT_TRUE(Call(GroupedGemmCoded, GroupedGemmCodedScratchBytes(coded, 2), coded).ok());
  EXPECT_TRUE(SameBits(y, want_y)) << what;

  const GroupedGemmDgradArgs plain_grad = {dy_view, w.Values(), sizes,
                                           TensorView(want_dx.data(), {kRows, kK})};
  ASSERT_TRUE(Call(GroupedGemmDgrad, GroupedGemmDgradScratchBytes(plain_grad, 2), plain_grad).ok());
  const GroupedGemmDgradCodedArgs coded_grad = {
      {dy_view, w.Codes(), sizes, TensorView(dx.data(), {kRows, kK})}, w.coding};
  ASSERT_TRUE(
      Call(GroupedGemmDgradCoded, GroupedGemmDgradCodedScratchBytes(coded_grad, 2), coded_grad)
          .ok());
  EXPECT_TRUE(SameBits(dx, want_dx)) << what;
}

TEST(CodedWeightsTest, ProductsHaveTheBitsOfDequantizedWeights) {
  for (int f = 0; f < kNumQuantizedFormats; ++f) {
    for (const int axis : {0, 1}) {
      const Weights w(static_cast<QuantizedFormat>(f), axis);
      ASSERT_TRUE(w.status.ok()) << w.status.message();
      const std::string what = "format " + std::to_string(f) + " axis " + std::to_string(axis);
      ExpectSameProducts<float>(w, what + " f32");
      ExpectSameProducts<BF16>(w, what + " bf16");
    }
  }
}

TEST(CodedWeightsTest, ErrorsNameTheArgument) {
  const Weights w(QuantizedFormat::kMxfp8E4m3, 0);
  const std::vector<BF16> x = RandomRows(kK);
  std::vector<float> wide(kRows * kK), y(kRows * kN);
  const ConstTensorView sizes(kSizes.data(), {kExperts});
  GroupedGemmCodedArgs args = {
      {ConstTensorView(x.data(), {kRows, kK}), w.Codes(), sizes, TensorView(y.data(), {kRows, kN})},
      w.coding};
  args.coding.axis = 1;  // other blocks, other scales
  EXPECT_NE(Call(GroupedGemmCoded, 1 << 20, args).message().find("scale is"), std::string::npos);
  args.coding = w.coding;
  args.product.x = ConstTensorView(wide.data(), {kRows, kK});
  EXPECT_NE(Call(GroupedGemmCoded, 1 << 20, args).message().find("x is"), std::string::npos);
  args.product.x = ConstTensorView(x.data(), {kRows, kK});
  args.product.w = w.Values();
  EXPECT_NE(Call(GroupedGemmCoded, 1 << 20, args).message().find("w is"), std::string::npos);
}

}  // namespace
}  // namespace anabranch
