// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_TREE_ADD_TREE_ADD_COST_H_
#define ANABRANCH_OPS_TREE_ADD_TREE_ADD_COST_H_

#include <cstdint>

namespace anabranch {

constexpr double TreeAddFlops(int64_t count) { return 1.0 * count; }
// Two arrays of f32 read, one written.
constexpr double TreeAddBytes(int64_t count) { return 12.0 * count; }

}  // namespace anabranch

#endif  // ANABRANCH_OPS_TREE_ADD_TREE_ADD_COST_H_
