// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_DTYPE_H_
#define ANABRANCH_BASE_DTYPE_H_

#include <bit>
#include <cstdint>

namespace anabranch {

enum class DType { kF32, kBF16, kI32 };

constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kBF16 ? 2 : 4; }

constexpr const char* Name(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBF16 ? "bf16" : "i32";
}

// bfloat16: the upper half of an f32. Storage only; arithmetic is done in f32.
struct BF16 {
  uint16_t bits = 0;
};
static_assert(sizeof(BF16) == 2);

inline float ToFloat(BF16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline float ToFloat(float value) { return value; }

// Rounds to nearest, ties to even. A NaN stays a NaN (quietened, sign kept); subnormals are kept.
inline BF16 ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return BF16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return BF16{static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <typename T>
T FromFloat(float value);
template <>
inline float FromFloat<float>(float value) {
  return value;
}
template <>
inline BF16 FromFloat<BF16>(float value) {
  return ToBF16(value);
}

template <typename T>
inline constexpr DType kDTypeOf = DType::kI32;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<BF16> = DType::kBF16;

}  // namespace anabranch

#endif  // ANABRANCH_BASE_DTYPE_H_
