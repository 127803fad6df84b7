// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The oracle against numbers worked out by hand, and against the definitions it must keep.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/quantize/problem.h"

namespace anabranch {
namespace {

using quantize::Problem;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

QuantizeOptions With(QuantizedFormat format, int axis = 1, ScaleMode mode = ScaleMode::kRceil) {
  QuantizeOptions options;
  options.format = format;
  options.axis = axis;
  options.scale_mode = mode;
  return options;
}

// The scale code of one block of 32 whose largest size is amax.
uint8_t ScaleCode(QuantizedFormat format, ScaleMode mode, float amax, bool strict = false) {
  Problem p(With(format, 1, mode), 1, 32);
  p.options.strict = strict;
  p.x[5] = -amax;
  EXPECT_TRUE(QuantizeReference(p.Args()).ok());
  return p.scale[0];
}

TEST(QuantizeReferenceTest, SharedPowersOfTwo) {
  using enum ScaleMode;
  const auto code = [](ScaleMode mode, float amax) {
    return ScaleCode(QuantizedFormat::kMxfp8E4m3, mode, amax);
  };
  // 448 = 1.75 * 2^8 is the largest element. amax 448: the power is 1 (code 127) in every mode but
  // CEIL, whose power is ceil(log2 448) - 8 = 1.
  EXPECT_EQ(code(kRceil, 448), 127);
  EXPECT_EQ(code(kFloor, 448), 127);
  EXPECT_EQ(code(kEven, 448), 127);
  EXPECT_EQ(code(kCeil, 448), 128);
  // Just above: RCEIL must double, FLOOR saturates, EVEN rounds to 512 only from 496 on.
  EXPECT_EQ(code(kRceil, 449), 128);
  EXPECT_EQ(code(kFloor, 449), 127);
  EXPECT_EQ(code(kFloor, 511), 127);
  EXPECT_EQ(code(kEven, 495), 127);
  EXPECT_EQ(code(kEven, 496), 128);
  EXPECT_EQ(code(kCeil, 256), 127);
  EXPECT_EQ(code(kCeil, 257), 128);
  EXPECT_EQ(ScaleCode(QuantizedFormat::kMxfp4, kRceil, 6), 127);
  EXPECT_EQ(ScaleCode(QuantizedFormat::kMxfp4, kFloor, 6), 127);
  EXPECT_EQ(ScaleCode(QuantizedFormat::kMxfp4, kEven, 7), 128);
  EXPECT_EQ(ScaleCode(QuantizedFormat::kMxfp8E5m2, kRceil, 57344), 127);
}

TEST(QuantizeReferenceTest, CornersOfTheScale) {
  constexpr auto kFormat = QuantizedFormat::kMxfp8E4m3;
  for (int m = 0; m < 4; ++m) {
    const auto mode = static_cast<ScaleMode>(m);
    EXPECT_EQ(ScaleCode(kFormat, mode, 0), 0);
    EXPECT_EQ(ScaleCode(kFormat, mode, 1e-44f), 0);  // the smallest power serves every tiny block
    EXPECT_EQ(ScaleCode(kFormat, mode, kInfinity), 0xfe);
    EXPECT_EQ(ScaleCode(kFormat, mode, kInfinity, true), 0xff);
    EXPECT_EQ(ScaleCode(kFormat, mode, kNan), 0xff);
  }
  // Around the end of the range, amax / 448 = 2^-127 and the next float above.
  const float least = std::ldexp(448.0f, -127);
  EXPECT_EQ(ScaleCode(kFormat, ScaleMode::kRceil, least), 0);
  EXPECT_EQ(ScaleCode(kFormat, ScaleMode::kRceil, 1.001f * least), 1);
  EXPECT_EQ(ScaleCode(kFormat, ScaleMode::kRceil, std::numeric_limits<float>::max()), 247);
}

TEST(QuantizeReferenceTest, ElementsOfABlockShareItsPower) {
  Problem p(With(QuantizedFormat::kMxfp8E4m3), 1, 40);
  p.x[0] = 3 * 448;       // power 4
  p.x[1] = -4 * 1.0625f;  // halfway between 1 and 1.125: to even
  p.x[32] = 448;          // the last block has 8 elements
  p.x[33] = 1.0625f;
  ASSERT_TRUE(QuantizeReference(p.Args()).ok());
  EXPECT_EQ(p.scale[0], 129);
  EXPECT_EQ(p.scale[1], 127);
  EXPECT_EQ(p.data[0], 0x7a);  // 336 lies between 320 and 352: to even
  EXPECT_EQ(p.data[1], 0xb8);
  EXPECT_EQ(p.data[32], 0x7e);
  EXPECT_EQ(p.data[33], 0x38);
  ASSERT_TRUE(DequantizeReference(p.BackArgs()).ok());
  EXPECT_EQ(p.back[0], 4 * 320);
  EXPECT_EQ(p.back[1], -4);
  EXPECT_EQ(p.tensor_scale[0], 1);
}

TEST(QuantizeReferenceTest, NvfpFollowsTheOrderOfRoundings) {
  Problem p(With(QuantizedFormat::kNvfp4), 1, 32);
  p.x[0] = 12;      // the tensor's amax: S = 2688 / 12 = 224
  p.x[16] = 1;      // block scale e4m3(1 * fl(224 / 6)) = e4m3(37.33) = 36
  p.x[17] = 0.25f;  // m = 1 / (36 / 224) = 6.2222; 1.5556 rounds to 1.5
  ASSERT_TRUE(QuantizeReference(p.Args()).ok());
  EXPECT_FLOAT_EQ(p.tensor_scale[0], 1.0f / 224);
  EXPECT_EQ(ElementValue(kE4m3, p.scale[0]), 448);
  EXPECT_EQ(ElementValue(kE4m3, p.scale[1]), 36);
  EXPECT_EQ(p.data[0], 7);
  EXPECT_EQ(p.data[16], 7);
  EXPECT_EQ(p.data[17], 3);
  Problem zero(With(QuantizedFormat::kNvfp4), 1, 16);
  ASSERT_TRUE(QuantizeReference(zero.Args()).ok());
  EXPECT_EQ(zero.tensor_scale[0], 1);
  EXPECT_EQ(zero.scale[0], 0);
  EXPECT_EQ(zero.data[0], 0);
}

TEST(QuantizeReferenceTest, NvfpNanStaysInItsBlock) {
  Problem p(With(QuantizedFormat::kNvfp4), 1, 32);
  p.x[0] = kNan;
  p.x[16] = 6;
  ASSERT_TRUE(QuantizeReference(p.Args()).ok());
  EXPECT_EQ(p.scale[0], kE4m3.nan_code);
  EXPECT_FLOAT_EQ(p.tensor_scale[0], 6.0f / 2688);
  p.x[0] = kInfinity;
  ASSERT_TRUE(QuantizeReference(p.Args()).ok());
  EXPECT_EQ(p.tensor_scale[0], 1);
  EXPECT_EQ(ElementValue(kE4m3, p.scale[0]), 448);
  EXPECT_EQ(p.data[0], 7);
  p.options.strict = true;
  ASSERT_TRUE(QuantizeReference(p.Args()).ok());
  EXPECT_EQ(p.scale[0], kE4m3.nan_code);
  EXPECT_FLOAT_EQ(p.tensor_scale[0], 6.0f / 2688);
}

TEST(QuantizeReferenceTest, Fp8BlocksHaveFloatScales) {
  Problem p(With(QuantizedFormat::kFp8Block128x128), 130, 130);
  p.x[0] = 896;                // block (0, 0)
  p.x[129] = 3 * 448;          // block (0, 1)
  p.x[129 * 130 + 129] = 448;  // block (1, 1); (1, 0) is zero
  ASSERT_TRUE(QuantizeReference(p.Args()).ok());
  EXPECT_EQ(p.float_scale()[0], 2);
  EXPECT_EQ(p.float_scale()[1], 4);
  EXPECT_EQ(p.float_scale()[2], 1);
  EXPECT_EQ(p.float_scale()[3], 1);
  p.options.scale_mode = ScaleMode::kFloat32;
  ASSERT_TRUE(QuantizeReference(p.Args()).ok());
  EXPECT_EQ(p.float_scale()[1], 1.0f / (448.0f / 1344.0f));
  EXPECT_EQ(p.data[129], 0x7e);
}

// Groups start at 128-row boundaries; what is between them is zero, and their blocks see no other
// group's rows.
TEST(QuantizeReferenceTest, GroupsArePaddedInTheCopyAlone) {
  for (int axis : {0, 1}) {
    QuantizeOptions options = With(QuantizedFormat::kMxfp8E4m3, axis);
    options.row_alignment = 128;
    Problem p(options, 40, 33, {3, 0, 30, 1});
    p.Fill(1);
    ASSERT_TRUE(QuantizeReference(p.Args()).ok());
    EXPECT_EQ(p.offsets, (std::vector<int32_t>{0, 128, 128, 256, 384}));
    int64_t row = 0;
    for (size_t group = 0; group < p.sizes.size(); ++group) {
      Problem alone(With(QuantizedFormat::kMxfp8E4m3, axis), p.sizes[group], 33);
      std::copy_n(p.x.begin() + row * 33, p.sizes[group] * 33, alone.x.begin());
      ASSERT_TRUE(QuantizeReference(alone.Args()).ok());
      const auto data = p.data.begin() + p.offsets[group] * 33;
      EXPECT_TRUE(std::equal(alone.data.begin(), alone.data.end(), data));
      const int64_t scale_row = axis == 1 ? p.offsets[group] : p.offsets[group] / 32;
      const int64_t scale_rows = axis == 1 ? p.sizes[group] : (p.sizes[group] + 31) / 32;
      EXPECT_TRUE(std::equal(alone.scale.begin(),
                             alone.scale.begin() + scale_rows * p.scale_columns,
                             p.scale.begin() + scale_row * p.scale_columns));
      const int64_t end = group + 1 < p.sizes.size() ? p.offsets[group + 1] : p.data_rows;
      for (int64_t i = (p.offsets[group] + p.sizes[group]) * 33; i < end * 33; ++i) {
        ASSERT_EQ(p.data[i], 0);
      }
      row += p.sizes[group];
    }
    ASSERT_TRUE(DequantizeReference(p.BackArgs()).ok());
    for (int64_t i = 34 * 33; i < 40 * 33; ++i) EXPECT_EQ(p.back[i], 0);  // rows of no group
  }
}

TEST(QuantizeReferenceTest, RoundTripIsQuantizeAndDequantize) {
  for (int f = 0; f < kNumQuantizedFormats; ++f) {
    const auto format = static_cast<QuantizedFormat>(f);
    for (int axis : {0, 1}) {
      Problem p(With(format, axis), 70, 50, {33, 0, 37}), q = p;
      p.options.stochastic = q.options.stochastic = true;
      p.Fill(2);
      q.Fill(2);
      QuantizeArgs args = p.Args();
      args.statistics = p.RoundTripArgs().statistics;
      ASSERT_TRUE(QuantizeReference(args).ok());
      ASSERT_TRUE(DequantizeReference(p.BackArgs()).ok());
      ASSERT_TRUE(QuantizeDequantizeReference(q.RoundTripArgs()).ok());
      EXPECT_EQ(p.statistics, q.statistics);
      double noise = 0, signal = 0;
      for (size_t i = 0; i < p.back.size(); ++i) {
        // One factor more or less: the tensor scale is applied to the product here.
        EXPECT_NEAR(q.back[i] * q.tensor_scale[0], p.back[i], 1e-6 * std::abs(p.back[i]));
        noise += std::pow(p.back[i] - p.x[i], 2);
        signal += std::pow(p.x[i], 2);
      }
      EXPECT_EQ(q.statistics[0], 3500);
      EXPECT_NEAR(q.statistics[3], signal, 1e-5 * signal);
      EXPECT_NEAR(q.statistics[4], noise, 1e-4 * noise);
    }
  }
}

TEST(QuantizeReferenceTest, BothCopiesAreTheirOwn) {
  Problem p(With(QuantizedFormat::kMxfp8E4m3, 1), 70, 50, {33, 0, 37}), q = p;
  p.Fill(2);
  std::vector<float> other(p.back.size()), statistics(kQuantizeStatistics);
  QuantizeDequantizeBothArgs both = {p.RoundTripArgs(),
                                     TensorView(other.data(), {p.rows, p.columns}),
                                     TensorView(statistics.data(), {kQuantizeStatistics})};
  ASSERT_TRUE(QuantizeDequantizeBothReference(both).ok());
  for (int axis : {1, 0}) {
    q.Fill(2);
    q.options.axis = axis;
    ASSERT_TRUE(QuantizeDequantizeReference(q.RoundTripArgs()).ok());
    EXPECT_EQ(axis == 1 ? p.back : other, q.back);
    EXPECT_EQ(axis == 1 ? p.statistics : statistics, q.statistics);
  }
  both.one.options.stochastic = true;
  EXPECT_EQ(QuantizeDequantizeBothReference(both).code(), StatusCode::kInvalidArgument);
}

TEST(QuantizeReferenceTest, HadamardKeepsProductsOverRows) {
  Problem p(With(QuantizedFormat::kNvfp4, 0), 37, 3, {21, 16});
  p.Fill(3);
  std::vector<BF16> out(48 * 3);
  const RandomHadamardArgs args = {16, p.Args().x, p.Args().group_sizes,
                                   TensorView(out.data(), {48, 3})};
  ASSERT_TRUE(RandomHadamardReference(args).ok());
  // Group 1: 16 rows of x from 21, of out from 32.
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      double before = 0, after = 0, size = 0;
      for (int r = 0; r < 16; ++r) {
        before += static_cast<double>(p.x[(21 + r) * 3 + a]) * p.x[(21 + r) * 3 + b];
        after +=
            static_cast<double>(ToFloat(out[(32 + r) * 3 + a])) * ToFloat(out[(32 + r) * 3 + b]);
        size += std::abs(ToFloat(out[(32 + r) * 3 + a]) * ToFloat(out[(32 + r) * 3 + b]));
      }
      EXPECT_NEAR(after, before, size * 0x1p-8);  // two bf16 roundings of 2^-9 each
    }
  }
  // A unit vector becomes a row of signs / 4.
  Problem unit(With(QuantizedFormat::kNvfp4, 0), 16, 1);
  unit.x[3] = 1;
  const RandomHadamardArgs one = {16, unit.Args().x, {}, TensorView(out.data(), {16, 1})};
  ASSERT_TRUE(RandomHadamardReference(one).ok());
  for (int r = 0; r < 16; ++r) {
    const int sign = __builtin_popcount(r & 3) % 2 == 0 ? -1 : 1;  // sign[3] = -1
    EXPECT_EQ(ToFloat(out[r]), 0.25f * static_cast<float>(sign)) << r;
  }
}

TEST(QuantizeReferenceTest, ErrorsNameTheArgument) {
  const auto message = [](const QuantizeArgs& args) { return QuantizeReference(args).message(); };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  Problem p(With(QuantizedFormat::kMxfp8E4m3), 4, 32, {2, 3});
  EXPECT_TRUE(has(message(p.Args()), "group_sizes add up to 5; x has 4 rows"));
  p.sizes = {2, -1};
  EXPECT_TRUE(has(message(p.Args()), "group_sizes[1]=-1"));
  p.sizes = {2, 2};
  p.options.stochastic = true;
  QuantizeArgs args = p.Args();
  args.key = {};
  EXPECT_TRUE(has(message(args), "key is absent"));
  p.options.stochastic = false;
  args = p.Args();
  args.options.scale_mode = ScaleMode::kFloat32;
  EXPECT_TRUE(has(message(args), "fp8_block"));
  args = p.Args();
  args.options.axis = 2;
  EXPECT_TRUE(has(message(args), "axis=2"));
  args = p.Args();
  args.scale = TensorView(p.scale.data(), DType::kE8M0, {4, 2});
  EXPECT_TRUE(has(message(args), "scale is e8m0[4,2]"));
  args = p.Args();
  args.options.row_alignment = 128;
  EXPECT_TRUE(has(message(args), "need 256 rows"));
}

}  // namespace
}  // namespace anabranch
