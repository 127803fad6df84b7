// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_ACTIVATION_H_
#define ANABRANCH_TILE_ACTIVATION_H_

#include <algorithm>
#include <array>
#include <cmath>

#include "tile/tile.h"

namespace anabranch {

// The definition of an activation, for the scalar oracles: its value, and its derivatives by gate
// and by up.
inline std::array<double, 3> ActivationAt(tile::Activation activation, double gate, double up) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  switch (activation) {
    case tile::Activation::kSwiglu: {
      const double s = sigmoid(gate);
      return {gate * s * up, up * s * (1 + gate * (1 - s)), gate * s};
    }
    case tile::Activation::kGeglu: {
      const double scale = std::sqrt(2 / M_PI);
      const double t = std::tanh(scale * (gate + 0.044715 * gate * gate * gate));
      const double slope = scale * (1 + 3 * 0.044715 * gate * gate);
      const double gelu = 0.5 * gate * (1 + t);
      return {gelu * up, (0.5 * (1 + t) + 0.5 * gate * (1 - t * t) * slope) * up, gelu};
    }
    case tile::Activation::kReglu:
      return {gate < 0 ? 0 : gate * up, gate > 0 ? up : 0, gate < 0 ? 0 : gate};
    case tile::Activation::kClampedSwiglu: {
      const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0) + 1;
      const double s = sigmoid(1.702 * g);
      return {u * g * s, gate > 7 ? 0 : u * (s + 1.702 * g * s * (1 - s)),
              std::abs(up) > 7 ? 0 : g * s};
    }
  }
  return {};
}

}  // namespace anabranch

#endif  // ANABRANCH_TILE_ACTIVATION_H_
