// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_MUON_MUON_COST_H_
#define ANABRANCH_OPS_MUON_MUON_COST_H_

#include <algorithm>
#include <cstdint>

namespace anabranch {

// Multiplications and additions of the products of an [m, n] matrix: its Gram matrix, the square of
// that, and its product with the matrix, in each iteration.
constexpr double MuonFlops(int64_t matrices, int64_t m, int64_t n, int64_t iterations) {
  const double side = static_cast<double>(std::min(m, n));
  return 1.0 * matrices * iterations * (4.0 * m * n * side + 2.0 * side * side * side);
}

// Bytes that cross the memory bus at least: three arrays in, two out, f32.
constexpr double MuonBytes(int64_t parameters) { return 20.0 * static_cast<double>(parameters); }

}  // namespace anabranch

#endif  // ANABRANCH_OPS_MUON_MUON_COST_H_
