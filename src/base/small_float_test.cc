// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "base/small_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace anabranch {
namespace {

constexpr ElementType kTypes[] = {kE4m3, kE5m2, kE2m1};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Table 1 of OCP OFP8 1.0 and section 5.3.3 of OCP MX 1.0.
TEST(SmallFloatTest, PublishedValues) {
  EXPECT_EQ(ElementValue(kE4m3, 0x7e), 448.0f);
  EXPECT_EQ(ElementValue(kE4m3, 0x08), 0x1p-6f);
  EXPECT_EQ(ElementValue(kE4m3, 0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(ElementValue(kE4m3, 0x7f)));
  EXPECT_EQ(ElementValue(kE5m2, 0x7b), 57344.0f);
  EXPECT_EQ(ElementValue(kE5m2, 0x01), 0x1p-16f);
  const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(ElementValue(kE2m1, static_cast<uint8_t>(code)), e2m1[code]);
    EXPECT_EQ(ElementValue(kE2m1, static_cast<uint8_t>(code + 8)), -e2m1[code]);
  }
  EXPECT_EQ(E8m0Value(0), 0x1p-127f);
  EXPECT_EQ(E8m0Value(127), 1.0f);
  EXPECT_EQ(E8m0Value(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(E8m0Value(255)));
  for (int code = 0; code < 255; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    EXPECT_EQ(E8m0Value(byte) * E8m0Reciprocal(byte), 1.0f);
  }
}

// Positive codes in ascending order of their values, without NaN.
std::vector<float> Values(const ElementType& type) {
  std::vector<float> values;
  for (int code = 0; code <= type.max_code; ++code) {
    values.push_back(ElementValue(type, static_cast<uint8_t>(code)));
  }
  return values;
}

// By search: the nearest value, of two the one with an even code.
int Nearest(const std::vector<float>& values, double size) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double distance = std::abs(values[code] - size), least = std::abs(values[best] - size);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(SmallFloatTest, EveryBf16RoundsToTheNearestElement) {
  for (const ElementType& type : kTypes) {
    const std::vector<float> values = Values(type);
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = ToFloat(BF16{static_cast<uint16_t>(bits)});
      const uint8_t code = ToElement(type, value);
      if (std::isnan(value)) {
        ASSERT_EQ(code, type.nan_code);
        continue;
      }
      const double size = std::min(std::abs(static_cast<double>(value)), 1e6);
      const int sign = std::signbit(value) ? 1 << type.sign_shift : 0;
      ASSERT_EQ(code, Nearest(values, size) | sign) << value;
    }
  }
}

TEST(SmallFloatTest, StochasticRoundingGivesTheNeighboursInProportion) {
  for (const ElementType& type : kTypes) {
    const std::vector<float> values = Values(type);
    for (size_t code = 0; code + 1 < values.size(); ++code) {
      const float low = values[code], high = values[code + 1], value = low + (high - low) * 0.25f;
      // Up exactly where the draw is below a quarter of its range.
      EXPECT_EQ(ToElementStochastic(type, value, 0x3fffffffu), code + 1);
      EXPECT_EQ(ToElementStochastic(type, value, 0x40000000u), code);
      EXPECT_EQ(ToElementStochastic(type, low, 0), code);
      EXPECT_EQ(ToElementStochastic(type, low, 0xffffffffu), code);
      EXPECT_EQ(ToElementStochastic(type, -value, 0), (code + 1) | 1 << type.sign_shift);
    }
    EXPECT_EQ(ToElementStochastic(type, kInfinity, 0), type.max_code);
    EXPECT_EQ(ToElementStochastic(type, kNan, 0), type.nan_code);
    EXPECT_EQ(ToElementStochastic(type, 2 * type.max, 0), type.max_code);
  }
}

TEST(SmallFloatTest, ConversionsSaturate) {
  for (const ElementType& type : kTypes) {
    EXPECT_EQ(ToElement(type, kInfinity), type.max_code);
    EXPECT_EQ(ToElement(type, -kInfinity), type.max_code | 1 << type.sign_shift);
    EXPECT_EQ(ToElement(type, 1.5f * type.max), type.max_code);
    EXPECT_EQ(ToElement(type, -0.0f), 1 << type.sign_shift);
    EXPECT_EQ(ToElement(type, 1e-30f), 0);
  }
}

}  // namespace
}  // namespace anabranch
