// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "base/element.h"
#include "ops/expert_rows/expert_rows.h"
#include "tile/activation.h"

namespace anabranch {

void ActivateRowsReference(const ActivateRowsArgs& args) {
  for (int64_t i = 0; i < args.hidden.num_elements(); ++i) {
    Store(args.hidden, i, ActivationAt(args.activation, Load(args.gate, i), Load(args.up, i))[0]);
  }
}

void ActivateRowsGradReference(const ActivateRowsGradArgs& args) {
  for (int64_t i = 0; i < args.gate_grad.num_elements(); ++i) {
    const auto at = ActivationAt(args.activation, Load(args.gate, i), Load(args.up, i));
    Store(args.gate_grad, i, Load(args.hidden_grad, i) * at[1]);
    Store(args.up_grad, i, Load(args.hidden_grad, i) * at[2]);
  }
}

void WeighRowsReference(const WeighRowsArgs& args) {
  const int64_t columns = args.x.size(1);
  for (int64_t i = 0; i < args.x.num_elements(); ++i) {
    Store(args.out, i, Load(args.weights, i / columns) * Load(args.x, i));
  }
}

void WeighRowsGradReference(const WeighRowsGradArgs& args) {
  const int64_t columns = args.x.size(1);
  for (int64_t row = 0; row < args.x.size(0); ++row) {
    double sum = 0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      sum += Load(args.out_grad, i) * Load(args.x, i);
      Store(args.x_grad, i, Load(args.weights, row) * Load(args.out_grad, i));
    }
    Store(args.weights_grad, row, sum);
  }
}

}  // namespace anabranch
