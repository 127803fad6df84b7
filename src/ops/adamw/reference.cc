// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What adamw and sum_of_squares compute, one element at a time.
#include <cmath>
#include <cstring>

#include "ops/adamw/adamw.h"

namespace anabranch {

Status AdamwReference(const AdamwArgs& args) {
  tile::AdamwScalars s;
  std::memcpy(&s, args.scalars.data(), sizeof(s));
  for (int64_t i = 0; i < args.parameter.num_elements(); ++i) {
    const double parameter = args.parameter.as<float>()[i];
    double m = args.m.as<float>()[i], v = args.v.as<float>()[i], update = 0;
    if (s.applied != 0) {
      const double g = static_cast<double>(s.clip_factor) * args.gradient.as<float>()[i];
      m = s.beta1 * m + s.one_minus_beta1 * g;
      v = s.beta2 * v + s.one_minus_beta2 * g * g;
      const double direction = s.correction1 * m / (std::sqrt(s.correction2 * v) + s.epsilon);
      update = -s.learning_rate * (direction + s.weight_decay * parameter);
    }
    args.new_m.as<float>()[i] = static_cast<float>(m);
    args.new_v.as<float>()[i] = static_cast<float>(v);
    args.new_parameter.as<float>()[i] =
        static_cast<float>(args.emit_update ? update : parameter + update);
  }
  return Status::Ok();
}

Status SumOfSquaresReference(const SumOfSquaresArgs& args) {
  double sum = 0;
  for (int64_t i = 0; i < args.values.num_elements(); ++i) {
    const double value = args.values.as<float>()[i];
    sum += value * value;
  }
  args.sum.as<float>()[0] = static_cast<float>(sum);
  return Status::Ok();
}

}  // namespace anabranch
