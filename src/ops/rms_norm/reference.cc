// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What rms_norm and its gradient compute, one element at a time.
#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "ops/rms_norm/rms_norm.h"

namespace anabranch {
namespace {

double At(const ConstTensorView& view, int64_t i) {
  return view.dtype() == DType::kBF16 ? ToFloat(view.as<BF16>()[i]) : view.as<float>()[i];
}

void Set(const TensorView& view, int64_t i, double value) {
  const float rounded = static_cast<float>(value);
  if (view.dtype() == DType::kBF16) {
    view.as<BF16>()[i] = ToBF16(rounded);
  } else {
    view.as<float>()[i] = rounded;
  }
}

}  // namespace

Status RmsNormReference(const RmsNormArgs& args) {
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  for (int64_t t = 0; t < rows; ++t) {
    double squares = 0;
    for (int64_t i = t * columns; i < (t + 1) * columns; ++i) {
      if (args.branch.has_value()) Set(args.sum, i, At(args.x, i) + At(args.branch, i));
      const double x = args.branch.has_value() ? At(args.sum, i) : At(args.x, i);
      squares += x * x;
    }
    const double inverse = 1 / std::sqrt(squares / columns + args.epsilon);
    Set(args.inverse, t, inverse);
    for (int64_t h = 0; h < columns; ++h) {
      const int64_t i = t * columns + h;
      const double x = args.branch.has_value() ? At(args.sum, i) : At(args.x, i);
      Set(args.y, i, x * inverse * At(args.weight, h));
    }
  }
  return Status::Ok();
}

Status RmsNormGradReference(const RmsNormGradArgs& args) {
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  std::vector<double> weight_grad(columns);
  for (int64_t t = 0; t < rows; ++t) {
    const double inverse = At(args.inverse, t);
    double mean = 0;
    for (int64_t h = 0; h < columns; ++h) {
      const int64_t i = t * columns + h;
      const double normal = At(args.x, i) * inverse;
      mean += At(args.y_grad, i) * At(args.weight, h) * normal / columns;
      weight_grad[h] += At(args.y_grad, i) * normal;
    }
    for (int64_t h = 0; h < columns; ++h) {
      const int64_t i = t * columns + h;
      const double grad = At(args.y_grad, i) * At(args.weight, h);
      double x_grad = inverse * (grad - At(args.x, i) * inverse * mean);
      if (args.sum_grad.has_value()) x_grad += At(args.sum_grad, i);
      Set(args.x_grad, i, x_grad);
      if (args.branch_grad.has_value()) Set(args.branch_grad, i, At(args.x_grad, i));
    }
  }
  for (int64_t h = 0; h < columns; ++h) Set(args.weight_grad, h, weight_grad[h]);
  return Status::Ok();
}

}  // namespace anabranch
