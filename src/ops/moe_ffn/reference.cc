// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What moe_ffn computes, one slot at a time.
#include <algorithm>
#include <vector>

#include "base/element.h"
#include "ops/moe_ffn/moe_ffn.h"
#include "tile/activation.h"

namespace anabranch {
namespace {

// Calls visit(expert, row, token, slot), experts ascending.
template <typename Args, typename Visit>
void ForEachSlot(const Args& args, const Visit& visit) {
  const int32_t* offsets = args.group_offsets.template as<int32_t>();
  const int64_t slots = args.slot_row.num_elements(), k = args.slot_row.size(1);
  std::vector<int64_t> row_slot(args.row_token.num_elements(), -1);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int32_t row = args.slot_row.template as<int32_t>()[slot];
    if (row >= 0) row_slot[row] = slot;
  }
  for (int64_t e = 0; e + 1 < args.group_offsets.size(0); ++e) {
    for (int64_t row = offsets[e]; row < offsets[e + 1]; ++row) {
      visit(e, row, row_slot[row] / k, row_slot[row]);
    }
  }
}

}  // namespace

Status MoeFfnReference(const MoeFfnArgs& args) {
  const DType type = args.x.dtype();
  const int64_t hidden = args.x.size(1), width = args.w_gate.size(2);
  const int64_t saved = MoeFfnSavedColumns(type, width);
  std::vector<double> sum(args.y.num_elements(), 0.0), h(width);
  ForEachSlot(args, [&](int64_t e, int64_t row, int64_t token, int64_t slot) {
    for (int64_t f = 0; f < width; ++f) {
      double gate = 0, up = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        const int64_t at = (e * hidden + i) * width + f;
        gate += Load(args.x, token * hidden + i) * Round(type, Load(args.w_gate, at));
        up += Load(args.x, token * hidden + i) * Round(type, Load(args.w_up, at));
      }
      gate = Round(type, gate);
      up = Round(type, up);
      h[f] = Round(type, ActivationAt(args.activation, gate, up)[0]);
      if (args.gate_up.num_elements() == 0) continue;
      Store(args.gate_up, row * 2 * saved + f, gate);
      Store(args.gate_up, row * 2 * saved + saved + f, up);
    }
    for (int64_t i = 0; i < hidden; ++i) {
      double out = 0;
      for (int64_t f = 0; f < width; ++f) {
        out += h[f] * Round(type, Load(args.w_down, (e * width + f) * hidden + i));
      }
      sum[token * hidden + i] += Round(type, args.weights.as<float>()[slot] * out);
    }
  });
  for (int64_t i = 0; i < args.y.num_elements(); ++i) Store(args.y, i, sum[i]);
  return Status::Ok();
}

Status MoeFfnGradReference(const MoeFfnGradArgs& args) {
  const DType type = args.x.dtype();
  const int64_t hidden = args.x.size(1), width = args.w_gate.size(2);
  const int64_t saved = MoeFfnSavedColumns(type, width), count = args.w_gate.num_elements();
  std::vector<double> x_grad(args.x.num_elements(), 0.0), gate_grad(count, 0.0);
  std::vector<double> up_grad(count, 0.0), down_grad(count, 0.0), dg(width), du(width);
  for (int64_t i = 0; i < args.weights_grad.num_elements(); ++i) Store(args.weights_grad, i, 0);
  ForEachSlot(args, [&](int64_t e, int64_t row, int64_t token, int64_t slot) {
    const double weight = args.weights.as<float>()[slot];
    double weight_grad = 0;
    for (int64_t f = 0; f < width; ++f) {
      double grad = 0;  // d(loss)/d(hidden) before the routing weight
      for (int64_t i = 0; i < hidden; ++i) {
        grad += Load(args.y_grad, token * hidden + i) *
                Round(type, Load(args.w_down, (e * width + f) * hidden + i));
      }
      const auto [value, gate_slope, up_slope] =
          ActivationAt(args.activation, Load(args.gate_up, row * 2 * saved + f),
                       Load(args.gate_up, row * 2 * saved + saved + f));
      const double h = Round(type, value);
      weight_grad += grad * h;
      dg[f] = Round(type, weight * grad * gate_slope);
      du[f] = Round(type, weight * grad * up_slope);
      for (int64_t i = 0; i < hidden; ++i) {
        const int64_t at = (e * hidden + i) * width + f;
        gate_grad[at] += Load(args.x, token * hidden + i) * dg[f];
        up_grad[at] += Load(args.x, token * hidden + i) * du[f];
        down_grad[(e * width + f) * hidden + i] +=
            Round(type, weight * h) * Load(args.y_grad, token * hidden + i);
      }
    }
    Store(args.weights_grad, slot, weight_grad);
    for (int64_t i = 0; i < hidden; ++i) {
      double dx = 0;
      for (int64_t f = 0; f < width; ++f) {
        const int64_t at = (e * hidden + i) * width + f;
        dx += dg[f] * Round(type, Load(args.w_gate, at)) + du[f] * Round(type, Load(args.w_up, at));
      }
      x_grad[token * hidden + i] += Round(type, dx);
    }
  });
  for (int64_t i = 0; i < args.x_grad.num_elements(); ++i) Store(args.x_grad, i, x_grad[i]);
  for (int64_t i = 0; i < count; ++i) {
    Store(args.w_gate_grad, i, gate_grad[i]);
    Store(args.w_up_grad, i, up_grad[i]);
    Store(args.w_down_grad, i, down_grad[i]);
  }
  return Status::Ok();
}

}  // namespace anabranch
