// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/pack_experts/pack_experts.h"

namespace anabranch {
namespace {

BF16 At(const ConstTensorView& w, int64_t e, int64_t i, int64_t j) {
  const int64_t at = (e * w.size(1) + i) * w.size(2) + j;
  return w.dtype() == DType::kF32 ? ToBF16(w.as<float>()[at]) : w.as<BF16>()[at];
}

void Put(const TensorView& panels, int64_t e, int64_t panel, int64_t k, int64_t c, BF16 value) {
  const int64_t first = (e * panels.size(1) + panel) * panels.size(2) * 64;
  panels.as<BF16>()[first + (k / 2 * 64 + c) * 2 + k % 2] = value;
}

}  // namespace

void PackExpertsReference(const PackExpertsArgs& args) {
  const auto& p = args.packed;
  for (const TensorView& view : {p.gate_up, p.down, p.down_transposed, p.gate_up_transposed}) {
    std::fill_n(view.as<BF16>(), view.num_elements(), BF16{});
  }
  const int64_t hidden = args.w_gate.size(1), width = args.w_gate.size(2);
  const int64_t even_width = width + width % 2;
  for (int64_t e = 0; e < args.w_gate.size(0); ++e) {
    for (int64_t h = 0; h < hidden; ++h) {
      for (int64_t f = 0; f < width; ++f) {
        const BF16 gate = At(args.w_gate, e, h, f), up = At(args.w_up, e, h, f);
        const BF16 down = At(args.w_down, e, f, h);
        Put(p.gate_up, e, f / 32, h, f % 32, gate);
        Put(p.gate_up, e, f / 32, h, 32 + f % 32, up);
        Put(p.down, e, h / 64, f, h % 64, down);
        Put(p.down_transposed, e, f / 64, h, f % 64, down);
        Put(p.gate_up_transposed, e, h / 64, f, h % 64, gate);
        Put(p.gate_up_transposed, e, h / 64, even_width + f, h % 64, up);
      }
    }
  }
}

}  // namespace anabranch
