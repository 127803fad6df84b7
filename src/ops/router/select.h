// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ROUTER_SELECT_H_
#define ANABRANCH_OPS_ROUTER_SELECT_H_

#include <bit>
#include <cstdint>
#include <limits>

// Top-k among the few hundred values of one token. Internal to the router. Values are ranked as
// integer keys, so that NaN has a rank and comparisons have no exceptions.

namespace anabranch {

// An integer that orders as the value does: NaN above all, -0 equal to +0.
inline int32_t OrderKey(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value + 0.0f);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return is_nan ? std::numeric_limits<int32_t>::max() : bits ^ ((bits >> 31) & 0x7fffffff);
}

// The value of a key: the inverse, except that it gives one NaN for all and +0 for -0.
inline float FromOrderKey(int32_t key) {
  return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}

// picks[0..count) = indices of the count largest keys, largest first, ties to the lowest index.
// candidates is scratch for num_keys entries.
void SelectLargest(const int32_t* keys, int64_t num_keys, int64_t count, int32_t* candidates,
                   int32_t* picks);

// Sum, from the largest on, of the values of the count largest keys. picks is scratch for count
// entries.
float SumOfLargest(const int32_t* keys, int64_t num_keys, int64_t count, int32_t* picks);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ROUTER_SELECT_H_
