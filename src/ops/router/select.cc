// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// A mispredicted branch costs as much as 20 keys of a vector loop, and in a running top-k each
// insertion is one or more. So a branch-free pass first finds a bound that leaves few candidates.
#include "ops/router/select.h"

#include <algorithm>
#include <functional>

namespace anabranch {
namespace {

// Sixteen lanes bound the sixteen largest; of 256 keys and the 8 largest, 11 pass on average.
constexpr int64_t kLanes = 16;
// Below this the bound costs more than it saves.
constexpr int64_t kMinKeys = 4 * kLanes;

// Keeps picks[0..filled) sorted while taking up index, whose key beats the last pick or fills up.
inline void Insert(const int32_t* keys, int32_t index, int64_t at, int32_t* picks) {
  for (; at > 0 && keys[picks[at - 1]] < keys[index]; --at) picks[at] = picks[at - 1];
  picks[at] = index;
}

// Top-k by insertion over indices index_of(0), index_of(1), ... in ascending order.
template <typename IndexOf>
void SelectByInsertion(const int32_t* keys, int64_t num_indices, int64_t count, int32_t* picks,
                       const IndexOf& index_of) {
  for (int64_t i = 0; i < num_indices; ++i) {
    const int32_t index = index_of(i);
    if (i < count) {
      Insert(keys, index, i, picks);
    } else if (keys[index] > keys[picks[count - 1]]) {
      Insert(keys, index, count - 1, picks);
    }
  }
}

int32_t Identity(int64_t i) { return static_cast<int32_t>(i); }

// A key that at least count keys reach: the count-th largest among the maxima of kLanes strided
// lanes, which are different elements. count <= kLanes <= num_keys.
int32_t LowerBound(const int32_t* keys, int64_t num_keys, int64_t count) {
  int32_t largest[kLanes];
  std::copy_n(keys, kLanes, largest);
  for (int64_t i = kLanes; i + kLanes <= num_keys; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      largest[lane] = std::max(largest[lane], keys[i + lane]);
    }
  }
  std::nth_element(largest, largest + count - 1, largest + kLanes, std::greater<>());
  return largest[count - 1];
}

}  // namespace

void SelectLargest(const int32_t* keys, int64_t num_keys, int64_t count, int32_t* candidates,
                   int32_t* picks) {
  if (num_keys < kMinKeys || count > kLanes) {
    return SelectByInsertion(keys, num_keys, count, picks, Identity);
  }
  const int32_t bound = LowerBound(keys, num_keys, count);
  int64_t num_candidates = 0;
  for (int64_t i = 0; i < num_keys; ++i) {
    candidates[num_candidates] = static_cast<int32_t>(i);
    num_candidates += keys[i] >= bound;
  }
  SelectByInsertion(keys, num_candidates, count, picks,
                    [candidates](int64_t i) { return candidates[i]; });
}

float SumOfLargest(const int32_t* keys, int64_t num_keys, int64_t count, int32_t* picks) {
  if (count > 2) {
    SelectByInsertion(keys, num_keys, count, picks, Identity);
    float sum = FromOrderKey(keys[picks[0]]);
    for (int64_t i = 1; i < count; ++i) sum += FromOrderKey(keys[picks[i]]);
    return sum;
  }
  int32_t first = std::numeric_limits<int32_t>::min();
  int32_t second = first;
  for (int64_t i = 0; i < num_keys; ++i) {
    second = std::max(second, std::min(first, keys[i]));
    first = std::max(first, keys[i]);
  }
  return count == 1 ? FromOrderKey(first) : FromOrderKey(first) + FromOrderKey(second);
}

}  // namespace anabranch
