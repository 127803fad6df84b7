// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_DTYPE_H_
#define ANABRANCH_BASE_DTYPE_H_

#include <bit>
#include <cstdint>

namespace anabranch {

// kE4M3 ... kE8M0 are codes of one byte each (base/small_float.h); E2M1 in the low four bits.
enum class DType { kF32, kBF16, kI32, kU8, kE4M3, kE5M2, kE2M1, kE8M0 };

constexpr int64_t SizeOf(DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kI32) return 4;
  return dtype == DType::kBF16 ? 2 : 1;
}

constexpr const char* Name(DType dtype) {
  constexpr const char* kNames[] = {"f32", "bf16", "i32", "u8", "e4m3", "e5m2", "e2m1", "e8m0"};
  return kNames[static_cast<int>(dtype)];
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
template <>
inline constexpr DType kDTypeOf<uint8_t> = DType::kU8;

}  // namespace anabranch

#endif  // ANABRANCH_BASE_DTYPE_H_
