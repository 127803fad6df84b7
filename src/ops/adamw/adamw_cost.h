// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ADAMW_ADAMW_COST_H_
#define ANABRANCH_OPS_ADAMW_ADAMW_COST_H_

#include <cstdint>

namespace anabranch {

// Bytes that cross the memory bus: four arrays in, three out, f32.
constexpr double AdamwBytes(int64_t parameters) { return 28.0 * static_cast<double>(parameters); }
// Multiplications, additions, a division and a square root, each counted as one.
constexpr double AdamwFlops(int64_t parameters) { return 17.0 * static_cast<double>(parameters); }

constexpr double SumOfSquaresBytes(int64_t values) { return 4.0 * static_cast<double>(values); }
constexpr double SumOfSquaresFlops(int64_t values) { return 2.0 * static_cast<double>(values); }

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ADAMW_ADAMW_COST_H_
