// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What muon computes, matrix by matrix, in double.
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/muon/muon.h"

namespace anabranch {
namespace {

using Matrix = std::vector<double>;  // row-major

// a [m, k] @ b [k, n].
Matrix Product(const Matrix& a, const Matrix& b, int64_t m, int64_t k, int64_t n) {
  Matrix out(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t c = 0; c < n; ++c) out[i * n + c] += a[i * k + j] * b[j * n + c];
    }
  }
  return out;
}

Matrix Transposed(const Matrix& x, int64_t m, int64_t n) {
  Matrix out(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) out[j * m + i] = x[i * n + j];
  }
  return out;
}

Matrix Orthogonalized(Matrix x, int64_t m, int64_t n, int64_t iterations) {
  double squares = 0;
  for (double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares) + kMuonEpsilon;
  const auto [a, b, c] = kMuonCoefficients;
  for (int64_t i = 0; i < iterations; ++i) {
    const Matrix gram = Product(x, Transposed(x, m, n), m, n, m);
    Matrix factor = Product(gram, gram, m, m, m);
    for (int64_t j = 0; j < m * m; ++j) factor[j] = b * gram[j] + c * factor[j];
    const Matrix moved = Product(factor, x, m, m, n);
    for (int64_t j = 0; j < m * n; ++j) x[j] = a * x[j] + moved[j];
  }
  return x;
}

}  // namespace

Status MuonReference(const MuonArgs& args) {
  MuonScalars s;
  std::memcpy(&s, args.scalars.data(), sizeof(s));
  const int64_t m = args.gradient.size(1), n = args.gradient.size(2);
  for (int64_t e = 0; e < args.gradient.size(0); ++e) {
    Matrix moments(m * n), direction(m * n);
    for (int64_t i = 0; i < m * n; ++i) {
      const double g =
          static_cast<double>(s.clip_factor) * args.gradient.as<float>()[e * m * n + i];
      moments[i] = s.beta * args.m.as<float>()[e * m * n + i] + s.one_minus_beta * g;
      direction[i] = s.beta * moments[i] + s.one_minus_beta * g;
    }
    direction = Orthogonalized(direction, m, n, args.iterations);
    for (int64_t i = 0; i < m * n; ++i) {
      const int64_t at = e * m * n + i;
      const double parameter = args.parameter.as<float>()[at];
      const double update =
          s.applied == 0 ? 0
                         : -s.learning_rate * (s.scale * direction[i] + s.weight_decay * parameter);
      if (s.applied == 0) moments[i] = args.m.as<float>()[at];
      args.new_m.as<float>()[at] = static_cast<float>(moments[i]);
      args.new_parameter.as<float>()[at] =
          static_cast<float>(args.emit_update ? update : parameter + update);
    }
  }
  return Status::Ok();
}

}  // namespace anabranch
