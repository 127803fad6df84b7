// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What rms_norm and its gradient compute, one element at a time.
#include <cmath>
#include <vector>

#include "base/element.h"
#include "ops/rms_norm/rms_norm.h"

namespace anabranch {
Status RmsNormReference(const RmsNormArgs& args) {
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  for (int64_t t = 0; t < rows; ++t) {
    double squares = 0;
    for (int64_t i = t * columns; i < (t + 1) * columns; ++i) {
      if (args.branch.has_value()) Store(args.sum, i, Load(args.x, i) + Load(args.branch, i));
      const double x = args.branch.has_value() ? Load(args.sum, i) : Load(args.x, i);
      squares += x * x;
    }
    const double inverse = 1 / std::sqrt(squares / columns + args.epsilon);
    Store(args.inverse, t, inverse);
    for (int64_t h = 0; h < columns; ++h) {
      const int64_t i = t * columns + h;
      const double x = args.branch.has_value() ? Load(args.sum, i) : Load(args.x, i);
      Store(args.y, i, x * inverse * Load(args.weight, h));
    }
  }
  return Status::Ok();
}

Status RmsNormGradReference(const RmsNormGradArgs& args) {
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  std::vector<double> weight_grad(columns);
  for (int64_t t = 0; t < rows; ++t) {
    const double inverse = Load(args.inverse, t);
    double mean = 0;
    for (int64_t h = 0; h < columns; ++h) {
      const int64_t i = t * columns + h;
      const double normal = Load(args.x, i) * inverse;
      mean += Load(args.y_grad, i) * Load(args.weight, h) * normal / columns;
      weight_grad[h] += Load(args.y_grad, i) * normal;
    }
    for (int64_t h = 0; h < columns; ++h) {
      const int64_t i = t * columns + h;
      const double grad = Load(args.y_grad, i) * Load(args.weight, h);
      double x_grad = inverse * (grad - Load(args.x, i) * inverse * mean);
      if (args.sum_grad.has_value()) x_grad += Load(args.sum_grad, i);
      Store(args.x_grad, i, x_grad);
      if (args.branch_grad.has_value()) Store(args.branch_grad, i, Load(args.x_grad, i));
    }
  }
  for (int64_t h = 0; h < columns; ++h) Store(args.weight_grad, h, weight_grad[h]);
  return Status::Ok();
}

}  // namespace anabranch
