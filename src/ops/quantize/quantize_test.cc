// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The vector kernels against the scalar oracle, bit for bit, on every instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/quantize/problem.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

using quantize::Problem;

template <typename Args>
Status Call(Status (*op)(const Args&, const Context&), int64_t (*bytes)(const Args&),
            const Args& args, int threads = 3) {
  ThreadExecutor executor(threads);
  std::vector<std::byte> scratch(bytes(args));
  return op(args, {&executor, scratch.data(), bytes(args)});
}
Status RunQuantize(Problem* p, int threads = 3) {
  return Call<QuantizeArgs>(Quantize, QuantizeScratchBytes, p->Args(), threads);
}
Status RunRoundTrip(Problem* p, int threads = 3) {
  return Call<QuantizeDequantizeArgs>(QuantizeDequantize, QuantizeDequantizeScratchBytes,
                                      p->RoundTripArgs(), threads);
}

// NaN payloads are nobody's contract.
bool SameFloats(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) &&
        !(std::isnan(a[i]) && std::isnan(b[i]))) {
      return false;
    }
  }
  return a.size() == b.size();
}
bool SameScales(const Problem& a, const Problem& b) {
  if (a.ScaleDType() != DType::kF32) {
    return std::memcmp(a.scale.data(), b.scale.data(), a.scale_rows * a.scale_columns) == 0;
  }
  const int64_t count = a.scale_rows * a.scale_columns;
  return SameFloats({a.float_scale(), a.float_scale() + count},
                    {b.float_scale(), b.float_scale() + count});
}

// Quantise, dequantise, and both at once: fast and reference.
void ExpectSame(const Problem& problem, const std::string& what) {
  Problem fast = problem, slow = problem;
  ASSERT_TRUE(RunQuantize(&fast).ok()) << what;
  ASSERT_TRUE(QuantizeReference(slow.Args()).ok());
  EXPECT_TRUE(SameScales(fast, slow)) << what;
  EXPECT_TRUE(SameFloats(fast.tensor_scale, slow.tensor_scale)) << what;
  EXPECT_EQ(fast.offsets, slow.offsets) << what;
  EXPECT_EQ(fast.data, slow.data) << what;
  ASSERT_TRUE(Call<DequantizeArgs>(Dequantize, DequantizeScratchBytes, fast.BackArgs()).ok());
  ASSERT_TRUE(DequantizeReference(slow.BackArgs()).ok());
  EXPECT_TRUE(SameFloats(fast.back, slow.back)) << what;
  ASSERT_TRUE(RunRoundTrip(&fast).ok()) << what;
  ASSERT_TRUE(QuantizeDequantizeReference(slow.RoundTripArgs()).ok());
  EXPECT_TRUE(SameFloats(fast.back, slow.back)) << what;
  Problem counted = problem;
  QuantizeArgs args = counted.Args();
  args.statistics = counted.RoundTripArgs().statistics;
  ASSERT_TRUE(Call<QuantizeArgs>(Quantize, QuantizeScratchBytes, args).ok()) << what;
  EXPECT_EQ(counted.data, fast.data) << what;
  EXPECT_TRUE(SameScales(counted, fast)) << what;
  EXPECT_TRUE(SameFloats(counted.statistics, fast.statistics)) << what;
  for (int i = 0; i < kQuantizeStatistics; ++i) {
    // Counts are exact; sums of some rows are f32 in lanes: 2^-24 a term, at most 256 of them.
    const float bound = i < 3 ? 0 : 0x1p-16f * slow.statistics[i];
    if (!std::isfinite(slow.statistics[i])) {
      EXPECT_EQ(std::isnan(fast.statistics[i]), std::isnan(slow.statistics[i])) << what;
    } else {
      EXPECT_NEAR(fast.statistics[i], slow.statistics[i], bound) << what << " statistic " << i;
    }
  }
}

// What a product is given: bf16 of bf16, with and without statistics.
void ExpectSameBf16(const Problem& problem, const std::string& what) {
  Problem p = problem;
  std::vector<BF16> x(p.x.size()), fast(p.x.size()), slow(p.x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = ToBF16(p.x[i]);
  QuantizeDequantizeArgs args = p.RoundTripArgs();
  args.x = ConstTensorView(x.data(), {p.rows, p.columns});
  args.out = TensorView(slow.data(), {p.rows, p.columns});
  ASSERT_TRUE(QuantizeDequantizeReference(args).ok()) << what;
  args.out = TensorView(fast.data(), {p.rows, p.columns});
  for (bool counted : {true, false}) {
    if (!counted) args.statistics = {};
    ASSERT_TRUE(
        Call<QuantizeDequantizeArgs>(QuantizeDequantize, QuantizeDequantizeScratchBytes, args)
            .ok());
    for (size_t i = 0; i < fast.size(); ++i) {
      if (std::isnan(ToFloat(slow[i])) && std::isnan(ToFloat(fast[i]))) continue;
      ASSERT_EQ(fast[i].bits, slow[i].bits) << what << " element " << i;
    }
  }
}

// Two copies at once, and each by a call of its own.
void ExpectSameBoth(const Problem& problem, const std::string& what) {
  Problem both = problem, slow = problem;
  std::vector<float> other(both.x.size()), statistics(kQuantizeStatistics), exact = other;
  const TensorView view(other.data(), {both.rows, both.columns});
  const TensorView sums(statistics.data(), {kQuantizeStatistics});
  ASSERT_TRUE(Call<QuantizeDequantizeBothArgs>(QuantizeDequantizeBoth,
                                               QuantizeDequantizeBothScratchBytes,
                                               {both.RoundTripArgs(), view, sums})
                  .ok());
  QuantizeDequantizeBothArgs args = {slow.RoundTripArgs(), view};
  args.one.statistics = {};
  args.other_out = TensorView(exact.data(), {both.rows, both.columns});
  ASSERT_TRUE(QuantizeDequantizeBothReference(args).ok());
  EXPECT_TRUE(SameFloats(both.back, slow.back)) << what;
  EXPECT_TRUE(SameFloats(other, exact)) << what;
  EXPECT_TRUE(SameFloats(both.tensor_scale, slow.tensor_scale)) << what;
  for (int axis : {problem.options.axis, 1 - problem.options.axis}) {
    Problem alone = problem;
    alone.options.axis = axis;
    ASSERT_TRUE(RunRoundTrip(&alone).ok()) << what;
    const bool first = axis == problem.options.axis;
    EXPECT_TRUE(SameFloats(first ? both.statistics : statistics, alone.statistics)) << what;
  }
}

struct Case {
  QuantizeOptions options;
  std::string name;
};

// Every format, axis, scale mode and rounding that exist together.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int f = 0; f < kNumQuantizedFormats; ++f) {
    for (int variant = 0; variant < 4 * kNumScaleModes; ++variant) {
      QuantizeOptions options;
      options.format = static_cast<QuantizedFormat>(f);
      options.scale_mode = static_cast<ScaleMode>(variant / 4);
      options.axis = variant % 2;
      options.stochastic = variant / 2 % 2 == 1;
      if (!quantize::CheckOptions("", options).ok()) continue;
      cases.push_back(
          {options, "format " + std::to_string(f) + " variant " + std::to_string(variant)});
    }
  }
  return cases;
}

TEST(QuantizeTest, BitsAreTheReferences) {
  for (const Case& c : Cases()) {
    Problem plain(c.options, 37, 75);
    plain.Fill(1);
    ExpectSame(plain, c.name);
    QuantizeOptions grouped = c.options;
    grouped.amax_per_group = true;
    grouped.row_alignment = 128;
    Problem groups(grouped, 150, 530, {5, 0, 130, 1, 10});
    groups.Fill(2);
    groups.key[2] = 1000;
    groups.key[3] = 7;
    ExpectSame(groups, c.name + " grouped");
    ExpectSameBf16(groups, c.name + " grouped");
    if (!c.options.stochastic) ExpectSameBoth(groups, c.name + " both");
    Problem whole(c.options, 21, 384);  // of whole blocks: those of several rows go together
    whole.Fill(3);
    for (int64_t i = 0; i < 10 * 384; ++i) whole.x[i] *= 0x1p-120f;  // bf16 rounds some values
    ExpectSame(whole, c.name + " whole");
    ExpectSameBf16(whole, c.name + " whole");
  }
}

TEST(QuantizeTest, NumbersThatAreNoNumbers) {
  const float strange[] = {std::numeric_limits<float>::quiet_NaN(),
                           -std::numeric_limits<float>::infinity(),
                           -0.0f,
                           1e-42f,
                           1e38f,
                           -std::numeric_limits<float>::max(),
                           1e-38f};
  for (const Case& c : Cases()) {
    for (bool strict : {false, true}) {
      for (float value : strange) {
        Problem p(c.options, 33, 70);
        p.options.strict = strict;
        if (value == value && std::abs(value) < 1) p.x.assign(p.x.size(), value / 2);
        p.x[35] = value;
        p.x[20 * 70 + 69] = value;
        ExpectSame(p, c.name + " " + std::to_string(value));
      }
    }
  }
}

// One block per scale: all f32 exponents with the mantissas where a power of two can change.
TEST(QuantizeTest, ScalesOfEveryExponent) {
  std::vector<float> sizes;
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (uint32_t edge : {0u, 1u, 2u, 0x3fffffu, 0x400000u, 0x400001u, 0x5fffffu, 0x600000u,
                          0x600001u, 0x6fffffu, 0x700000u, 0x77ffffu, 0x780000u, 0x7fffffu}) {
      sizes.push_back(std::bit_cast<float>(exponent << 23 | edge));
    }
  }
  for (const Case& c : Cases()) {
    if (c.options.axis == 1 || c.options.stochastic) continue;
    // Axis 0 and one row: each column is a block of its own.
    const auto columns = static_cast<int64_t>(sizes.size());
    Problem p(c.options, 1, columns), q = p;
    p.x = q.x = sizes;
    ASSERT_TRUE(RunQuantize(&p).ok());
    ASSERT_TRUE(QuantizeReference(q.Args()).ok());
    EXPECT_TRUE(SameScales(p, q)) << c.name;
    EXPECT_EQ(p.data, q.data) << c.name;
  }
}

// The kernels multiply by fl(1 / max) where the reference divides: a whole binade shows that the
// rounded-up power is the same, and the rule is the same in every other one.
TEST(QuantizeTest, MultiplyingAndDividingGiveTheSamePowers) {
  constexpr int64_t kColumns = 1 << 19;
  for (const auto format :
       {QuantizedFormat::kMxfp8E4m3, QuantizedFormat::kMxfp8E5m2, QuantizedFormat::kMxfp4}) {
    QuantizeOptions options;
    options.format = format;
    options.axis = 0;
    const float max = FactsOf(format).element.max;
    Problem p(options, 1, kColumns);
    for (uint32_t part = 0; part < (1u << 23) / kColumns; ++part) {
      for (uint32_t i = 0; i < kColumns; ++i) {
        p.x[i] = std::bit_cast<float>(0x43000000u | (part * static_cast<uint32_t>(kColumns) + i));
      }
      ASSERT_TRUE(RunQuantize(&p, 2).ok());
      for (int64_t i = 0; i < kColumns; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(p.x[i] / max);
        ASSERT_EQ(p.scale[i], (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0)) << p.x[i];
      }
    }
  }
}

TEST(QuantizeTest, Bf16SourcesAndResults) {
  for (const Case& c : Cases()) {
    if (c.options.scale_mode != ScaleMode::kRceil) continue;
    Problem wide(c.options, 35, 600), narrow = wide;
    wide.Fill(3);
    std::vector<BF16> x, out(wide.x.size());
    for (float& value : wide.x) {
      x.push_back(ToBF16(value));
      value = ToFloat(x.back());
    }
    QuantizeArgs args = narrow.Args();
    args.x = ConstTensorView(x.data(), {35, 600});
    ASSERT_TRUE(Call<QuantizeArgs>(Quantize, QuantizeScratchBytes, args).ok());
    ASSERT_TRUE(RunQuantize(&wide).ok());
    EXPECT_EQ(narrow.data, wide.data) << c.name;
    EXPECT_TRUE(SameScales(narrow, wide)) << c.name;
    // A value times a power of two, or times an E4M3 scale, has at most 6 bits: bf16 holds it.
    QuantizeDequantizeArgs trip = wide.RoundTripArgs();
    trip.out = TensorView(out.data(), {35, 600});
    ASSERT_TRUE(RunRoundTrip(&wide).ok());
    ASSERT_TRUE(
        Call<QuantizeDequantizeArgs>(QuantizeDequantize, QuantizeDequantizeScratchBytes, trip)
            .ok());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(ToFloat(out[i]), wide.back[i]) << c.name;
  }
}

TEST(QuantizeTest, BitsDoNotDependOnThreads) {
  QuantizeOptions options;
  options.format = QuantizedFormat::kNvfp4;
  options.stochastic = true;
  Problem one(options, 300, 700, {100, 200});
  one.Fill(4);
  Problem many = one;
  ASSERT_TRUE(RunQuantize(&one, 1).ok());
  ASSERT_TRUE(RunQuantize(&many, 7).ok());
  EXPECT_EQ(one.data, many.data);
  EXPECT_EQ(one.scale, many.scale);
  ASSERT_TRUE(RunRoundTrip(&one, 1).ok());
  ASSERT_TRUE(RunRoundTrip(&many, 7).ok());
  EXPECT_EQ(one.statistics, many.statistics);
}

// A draw belongs to an element of a group, wherever the group lies: rows 3 ... of group 5 alone
// give what they give together with all others.
TEST(QuantizeTest, DrawsFollowTheElement) {
  QuantizeOptions options;
  options.format = QuantizedFormat::kMxfp8E4m3;
  options.stochastic = true;
  Problem all(options, 60, 96, {10, 10, 40});
  all.Fill(5);
  Problem part(options, 37, 96);
  std::copy_n(all.x.begin() + 23 * 96, 37 * 96, part.x.begin());
  part.key[2] = 3;  // first row
  part.key[3] = 2;  // first group
  ASSERT_TRUE(RunQuantize(&all).ok());
  ASSERT_TRUE(RunQuantize(&part).ok());
  EXPECT_TRUE(std::equal(part.data.begin(), part.data.end(), all.data.begin() + 23 * 96));
}

// Half the rows of a tensor, told the amax of all of it, get the bits that they have in it: what
// ranks do that share its rows.
TEST(QuantizeTest, PartsThatKnowTheAmaxHaveTheBitsOfTheWhole) {
  constexpr int64_t kRows = 144, kSplit = 48, kColumns = 530;
  for (const Case& c : Cases()) {
    QuantizeOptions options = c.options;
    options.amax_per_group = true;
    if (kSplit % quantize::BlockRows(options) != 0) continue;
    Problem whole(options, kRows, kColumns);
    whole.Fill(3);
    ASSERT_TRUE(RunRoundTrip(&whole).ok());
    std::vector<Problem> parts;
    float amax = 0;
    for (int64_t begin : {int64_t{0}, kSplit}) {
      const int64_t rows = begin == 0 ? kSplit : kRows - kSplit;
      Problem part(options, rows, kColumns);
      std::copy_n(whole.x.begin() + begin * kColumns, rows * kColumns, part.x.begin());
      part.key[2] = static_cast<int32_t>(begin);
      float largest = -1, slow = -1;
      TensorAmaxArgs args = {options, part.Args().x, {}, TensorView(&largest, {1})};
      ASSERT_TRUE(Call<TensorAmaxArgs>(TensorAmax, TensorAmaxScratchBytes, args).ok());
      args.amax = TensorView(&slow, {1});
      ASSERT_TRUE(TensorAmaxReference(args).ok());
      EXPECT_EQ(largest, slow);
      amax = std::max(amax, largest);
      parts.push_back(std::move(part));
    }
    std::vector<float> together;
    for (Problem& part : parts) {
      QuantizeDequantizeArgs args = part.RoundTripArgs();
      args.amax = ConstTensorView(&amax, {1});
      ASSERT_TRUE(
          Call<QuantizeDequantizeArgs>(QuantizeDequantize, QuantizeDequantizeScratchBytes, args)
              .ok());
      EXPECT_TRUE(SameFloats(part.tensor_scale, whole.tensor_scale)) << c.name;
      together.insert(together.end(), part.back.begin(), part.back.end());
      Problem slow = part;
      args = slow.RoundTripArgs();
      args.amax = ConstTensorView(&amax, {1});
      ASSERT_TRUE(QuantizeDequantizeReference(args).ok());
      EXPECT_TRUE(SameFloats(slow.back, part.back)) << c.name;
    }
    EXPECT_TRUE(SameFloats(together, whole.back)) << c.name;
  }
}

TEST(QuantizeTest, AnAmaxLeavesOutWhatIsNoNumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float x[] = {1, kNan, -3, 2, -kInfinity, 5, 9, 9};  // the last row is of no group
  const int32_t sizes[] = {1, 1, 0, 1};
  float amax[4];
  TensorAmaxArgs args = {
      {}, ConstTensorView(x, {4, 2}), ConstTensorView(sizes, {4}), TensorView(amax, {4})};
  for (const bool strict : {false, true}) {
    args.options.strict = strict;
    for (const bool fast : {false, true}) {
      std::fill_n(amax, 4, -1.0f);
      const Status status = fast ? Call<TensorAmaxArgs>(TensorAmax, TensorAmaxScratchBytes, args, 2)
                                 : TensorAmaxReference(args);
      ASSERT_TRUE(status.ok());
      const float expected[] = {1, 3, 0, strict ? 5 : kInfinity};
      for (int i = 0; i < 4; ++i) EXPECT_EQ(amax[i], expected[i]) << i;
    }
  }
  args.amax = TensorView(amax, {3});
  EXPECT_NE(TensorAmaxReference(args).message().find("amax is f32[3]; must be f32 [4]"),
            std::string::npos);
}

TEST(QuantizeTest, StochasticRoundingIsUnbiased) {
  QuantizeOptions options;
  options.stochastic = true;
  Problem p(options, 1000, 1000);
  // 1.03 lies between 1 and 1.125; 448 in each block fixes its power.
  for (int64_t i = 0; i < 1000 * 1000; ++i) p.x[i] = i % 1000 % 32 == 0 ? 448.0f : 1.03f;
  ASSERT_TRUE(RunQuantize(&p).ok());
  double sum = 0, count = 0;
  for (int64_t i = 0; i < 1000 * 1000; ++i) {
    if (p.x[i] == 448.0f) continue;
    const float value = ElementValue(kE4m3, p.data[i]);
    ASSERT_TRUE(value == 1.0f || value == 1.125f);
    sum += value;
    ++count;
  }
  const double share = 0.03 / 0.125, sigma = 0.125 * std::sqrt(share * (1 - share));
  EXPECT_LT(std::abs(sum / count - 1.03), 4 * sigma / std::sqrt(count));
}

TEST(QuantizeTest, HadamardIsTheReferences) {
  for (int64_t columns : {1, 16, 70, 600}) {
    Problem p({}, 180, columns, {0, 37, 128, 1});
    p.Fill(6);
    const int64_t rows = 4 * 128 + 128;
    std::vector<uint16_t> fast(rows * columns, 1), slow(rows * columns, 2);
    RandomHadamardArgs args = {128, p.Args().x, p.Args().group_sizes,
                               TensorView(fast.data(), DType::kBF16, {rows, columns})};
    ASSERT_TRUE(Call<RandomHadamardArgs>(RandomHadamard, RandomHadamardScratchBytes, args).ok());
    args.out = TensorView(slow.data(), DType::kBF16, {rows, columns});
    ASSERT_TRUE(RandomHadamardReference(args).ok());
    EXPECT_EQ(fast, slow) << columns;
  }
}

TEST(QuantizeTest, EmptyArgumentsGiveEmptyResults) {
  for (int axis : {0, 1}) {
    QuantizeOptions options;
    options.axis = axis;
    Problem none(options, 0, 64), narrow(options, 5, 0), empty(options, 0, 64, {0, 0});
    EXPECT_TRUE(RunQuantize(&none).ok());
    EXPECT_TRUE(RunQuantize(&narrow).ok());
    EXPECT_TRUE(RunQuantize(&empty).ok());
    EXPECT_TRUE(RunRoundTrip(&empty).ok());
    EXPECT_EQ(empty.statistics[0], 0);
  }
}

TEST(QuantizeTest, ScratchIsChecked) {
  Problem p({}, 4, 32);
  ThreadExecutor executor(1);
  EXPECT_EQ(Quantize(p.Args(), {&executor, nullptr, 0}).code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace anabranch
