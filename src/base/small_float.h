// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_SMALL_FLOAT_H_
#define ANABRANCH_BASE_SMALL_FLOAT_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/dtype.h"

// The element and scale types of the low-precision formats (OCP OFP8 1.0, OCP MX 1.0): storage
// types whose codes are bytes. Everything here is scalar and meant to be read; kernels compute the
// same bits in their own way.
namespace anabranch {

// A sign, exponent and mantissa type without infinities in its range of use: conversions saturate.
struct ElementType {
  DType dtype;
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number; subnormals have the same step
  float max;
  uint8_t max_code;
  uint8_t nan_code;  // E2M1 has none: a NaN becomes its largest number, as in PTX cvt.satfinite
  int sign_shift;    // bit of the sign
};
inline constexpr ElementType kE4m3 = {DType::kE4M3, 3, -6, 448.0f, 0x7e, 0x7f, 7};
inline constexpr ElementType kE5m2 = {DType::kE5M2, 2, -14, 57344.0f, 0x7b, 0x7e, 7};
inline constexpr ElementType kE2m1 = {DType::kE2M1, 1, 0, 6.0f, 0x7, 0x7, 3};

// Code of |value| <= type.max split into a number of steps: value = steps * 2^(exponent -
// mantissa_bits), exponent >= min_exponent.
inline uint8_t CodeOfSteps(const ElementType& type, int exponent, int steps) {
  return static_cast<uint8_t>(((exponent - type.min_exponent) << type.mantissa_bits) + steps);
}

// Nearest element, ties to even; beyond the range the largest one; NaN gives nan_code without sign.
// A zero result keeps the sign.
inline uint8_t ToElement(const ElementType& type, float value) {
  if (std::isnan(value)) return type.nan_code;
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 1 << type.sign_shift : 0);
  const double size = std::abs(static_cast<double>(value));
  if (size >= type.max) return sign | type.max_code;
  const int exponent =
      size == 0 ? type.min_exponent : std::max(std::ilogb(size), type.min_exponent);
  const double steps = std::nearbyint(std::ldexp(size, type.mantissa_bits - exponent));
  return sign | CodeOfSteps(type, exponent, static_cast<int>(steps));
}

// One of the two neighbours: the upper one (in size) where the exact fraction of a step exceeds
// random / 2^32 cut to 24 bits. Elements stay as they are; beyond the range and NaN as above.
inline uint8_t ToElementStochastic(const ElementType& type, float value, uint32_t random) {
  if (std::isnan(value)) return type.nan_code;
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 1 << type.sign_shift : 0);
  const double size = std::abs(static_cast<double>(value));
  if (size >= type.max) return sign | type.max_code;
  const int exponent =
      size == 0 ? type.min_exponent : std::max(std::ilogb(size), type.min_exponent);
  const double exact = std::ldexp(size, type.mantissa_bits - exponent);
  const double lower = std::floor(exact);
  const bool up = std::ldexp(static_cast<double>(random >> 8), -24) < exact - lower;
  return sign | CodeOfSteps(type, exponent, static_cast<int>(lower) + (up ? 1 : 0));
}

// The value of a code; NaN for codes above max_code (E5M2's infinities among them).
inline float ElementValue(const ElementType& type, uint8_t code) {
  const int sign_bit = 1 << type.sign_shift;
  const int size = code & (sign_bit - 1);
  if (size > type.max_code) return std::numeric_limits<float>::quiet_NaN();
  const int biased = size >> type.mantissa_bits;
  const int fraction = size & ((1 << type.mantissa_bits) - 1);
  const int steps = biased == 0 ? fraction : fraction + (1 << type.mantissa_bits);
  const int exponent = type.min_exponent + std::max(biased - 1, 0);
  const auto value = static_cast<float>(std::ldexp(steps, exponent - type.mantissa_bits));
  return (code & sign_bit) != 0 ? -value : value;
}

// E8M0: 2^(code - 127), from 2^-127 (a subnormal f32) to 2^127; 0xff is NaN. There is no zero.
inline constexpr uint8_t kE8m0Nan = 0xff;
inline float E8m0Value(uint8_t code) {
  if (code == kE8m0Nan) return std::numeric_limits<float>::quiet_NaN();
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}
// 1 / E8m0Value(code), exact: 2^127 to 2^-127.
inline float E8m0Reciprocal(uint8_t code) {
  return code == kE8m0Nan ? E8m0Value(code) : E8m0Value(static_cast<uint8_t>(254 - code));
}

}  // namespace anabranch

#endif  // ANABRANCH_BASE_SMALL_FLOAT_H_
