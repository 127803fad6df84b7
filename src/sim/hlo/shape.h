// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_SHAPE_H_
#define ANABRANCH_SIM_HLO_SHAPE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace anabranch::sim::hlo {

// XLA's number for the host's memory in a layout, as in f32[8]{0:S(5)}.
inline constexpr int64_t kHostMemorySpace = 5;

// The shape of an HLO value: an array, a tuple of shapes, or a token.
struct Shape {
  std::string type;             // "bf16", "f32", "tuple", "token", ...
  std::vector<int64_t> dims;    // of an array
  int64_t memory_space = 0;     // of an array's layout
  std::vector<Shape> elements;  // of a tuple
};

// Bits of one element of `type`; -1 for a type that HLO does not have.
int64_t ElementBits(std::string_view type);

// Elements and bytes, summed over a tuple; a dynamic dimension counts with its bound.
double ElementCount(const Shape& shape);
double ByteSize(const Shape& shape);
// Whether any array of it lies in the host's memory.
bool IsOnHost(const Shape& shape);

// Reads one shape from the front of *text and removes it. InvalidArgument: no shape stands there.
Status ReadShape(std::string_view* text, Shape* shape);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_SHAPE_H_
