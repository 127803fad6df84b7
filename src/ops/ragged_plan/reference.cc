// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Scalar oracles of the plan and of the row operations.
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/element.h"
#include "ops/ragged_plan/ragged_plan.h"
#include "ops/ragged_plan/rows.h"

namespace anabranch {
void RaggedPlanReference(const RaggedPlanArgs& args) {
  const int32_t* experts = args.experts.as<int32_t>();
  const int64_t num_slots = args.experts.num_elements();
  const int64_t num_experts = args.group_sizes.size(0);
  int32_t* row_token = args.row_token.as<int32_t>();
  int32_t row = 0;
  args.group_offsets.as<int32_t>()[0] = 0;
  std::fill_n(args.slot_row.as<int32_t>(), num_slots, -1);
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int32_t first = row;
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      if (experts[slot] != expert) continue;
      args.slot_row.as<int32_t>()[slot] = row;
      row_token[row++] = static_cast<int32_t>(slot / args.experts.size(1));
    }
    args.group_sizes.as<int32_t>()[expert] = row - first;
    args.group_offsets.as<int32_t>()[expert + 1] = row;
  }
  std::fill(row_token + row, row_token + args.row_token.size(0), -1);
}

void GatherRowsReference(const GatherRowsArgs& args) {
  const int64_t hidden = args.x.size(1);
  for (int64_t row = 0; row < args.rows.size(0); ++row) {
    const int64_t token = args.row_token.as<int32_t>()[row];
    for (int64_t h = 0; h < hidden; ++h) {
      Store(args.rows, row * hidden + h, token < 0 ? 0.0f : Load(args.x, token * hidden + h));
    }
  }
}

void GatherWeightsReference(const GatherWeightsArgs& args) {
  float* row_weights = args.row_weights.as<float>();
  std::fill_n(row_weights, args.row_weights.size(0), 0.0f);
  for (int64_t slot = 0; slot < args.slot_row.num_elements(); ++slot) {
    const int64_t row = args.slot_row.as<int32_t>()[slot];
    if (row >= 0) row_weights[row] = args.weights.as<float>()[slot];
  }
}

void CombineRowsReference(const CombineRowsArgs& args) {
  const int64_t hidden = args.rows.size(1);
  const int64_t topk = args.slot_row.size(1);
  for (int64_t token = 0; token < args.y.size(0); ++token) {
    const int32_t* slot_row = args.slot_row.as<int32_t>() + token * topk;
    std::vector<int64_t> order(topk);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return slot_row[a] < slot_row[b]; });
    for (int64_t h = 0; h < hidden; ++h) {
      float sum = 0.0f;
      for (int64_t slot : order) {
        if (slot_row[slot] < 0) continue;
        const auto value = static_cast<float>(Load(args.rows, slot_row[slot] * hidden + h));
        const bool weighted = args.weights.has_value();
        sum += weighted ? args.weights.as<float>()[token * topk + slot] * value : value;
      }
      Store(args.y, token * hidden + h, sum);
    }
  }
}

void CombineRowsGradReference(const CombineRowsGradArgs& args) {
  const int64_t hidden = args.rows.size(1);
  const int64_t topk = args.slot_row.size(1);
  for (int64_t i = 0; i < args.d_rows.num_elements(); ++i) Store(args.d_rows, i, 0.0f);
  for (int64_t slot = 0; slot < args.slot_row.num_elements(); ++slot) {
    const int64_t row = args.slot_row.as<int32_t>()[slot];
    double product = 0.0;
    for (int64_t h = 0; h < hidden && row >= 0; ++h) {
      const auto d_y = static_cast<float>(Load(args.d_y, slot / topk * hidden + h));
      product += static_cast<double>(d_y) * Load(args.rows, row * hidden + h);
      Store(args.d_rows, row * hidden + h, args.weights.as<float>()[slot] * d_y);
    }
    args.d_weights.as<float>()[slot] = static_cast<float>(product);
  }
}

}  // namespace anabranch
