// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_ELEMENT_H_
#define ANABRANCH_BASE_ELEMENT_H_

#include <cstdint>

#include "base/dtype.h"
#include "base/tensor_view.h"

// One element at a time, of f32 or bf16 views: what the scalar oracles are written in.

namespace anabranch {

// Rounded to f32, and then to bf16 where `dtype` is that.
inline double Round(DType dtype, double value) {
  const float narrow = static_cast<float>(value);
  return dtype == DType::kBF16 ? ToFloat(ToBF16(narrow)) : narrow;
}

// Element `index` of `view` in row-major order; exact, and a double so that products of two are.
inline double Load(const ConstTensorView& view, int64_t index) {
  return view.dtype() == DType::kBF16 ? ToFloat(view.as<BF16>()[index]) : view.as<float>()[index];
}

// Stores Round(view.dtype(), value).
inline void Store(const TensorView& view, int64_t index, double value) {
  const float narrow = static_cast<float>(value);
  if (view.dtype() == DType::kBF16) {
    view.as<BF16>()[index] = ToBF16(narrow);
  } else {
    view.as<float>()[index] = narrow;
  }
}

}  // namespace anabranch

#endif  // ANABRANCH_BASE_ELEMENT_H_
