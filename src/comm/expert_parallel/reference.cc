// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Scalar oracles of the plan, of dispatch and of combine: what every rank should get, from what all
// ranks have. They share nothing with the plan's words.
#include <algorithm>
#include <vector>

#include "base/element.h"
#include "comm/expert_parallel/combine.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/plan.h"

namespace anabranch::expert_parallel {
namespace {

// Where rank's slots go, by PlanReference.
struct Slots {
  Slots(const Group& group, const ConstTensorView* experts, int64_t rank)
      : owner(experts[rank].num_elements()),
        row(experts[rank].num_elements()),
        offsets(group.num_experts + 1) {
    PlanReference(group, rank, experts, owner.data(), row.data(), offsets.data());
  }
  std::vector<int32_t> owner, row, offsets;
};

}  // namespace

void PlanReference(const Group& group, int64_t rank, const ConstTensorView* experts,
                   int32_t* slot_rank, int32_t* slot_row, int32_t* group_offsets) {
  std::fill_n(slot_rank, experts[rank].num_elements(), -1);
  std::fill_n(slot_row, experts[rank].num_elements(), -1);
  for (int64_t owner = 0; owner < group.ranks; ++owner) {
    int32_t row = 0;
    for (int64_t expert = 0; expert < group.num_experts; ++expert) {
      if (group.rank_of_expert[expert] != owner) continue;
      if (owner == rank) *group_offsets++ = row;
      for (int64_t source = 0; source < group.ranks; ++source) {
        for (int64_t slot = 0; slot < experts[source].num_elements(); ++slot) {
          if (experts[source].as<int32_t>()[slot] != expert) continue;
          if (source == rank) slot_rank[slot] = static_cast<int32_t>(owner);
          if (source == rank) slot_row[slot] = row;
          ++row;
        }
      }
      while (row % group.alignment != 0) ++row;
    }
    if (owner == rank) *group_offsets = row;
  }
}

void DispatchReference(const Group& group, const ConstTensorView* experts,
                       const DispatchArgs* ranks) {
  for (int64_t source = 0; source < group.ranks; ++source) {
    const DispatchArgs& mine = ranks[source];
    const int64_t hidden = mine.x.size(1);
    const Slots slots(group, experts, source);
    // Zeros first: what no slot overwrites is padding.
    int64_t used = 0;
    for (const int32_t offset : slots.offsets) used = std::max<int64_t>(used, offset);
    used = std::min(used, group.capacity);
    for (int64_t i = 0; i < used * hidden; ++i) Store(mine.rows, i, 0.0f);
    for (int64_t i = 0; mine.row_weights.has_value() && i < used; ++i) {
      Store(mine.row_weights, i, 0.0f);
    }
  }
  for (int64_t source = 0; source < group.ranks; ++source) {
    const DispatchArgs& mine = ranks[source];
    const int64_t hidden = mine.x.size(1);
    const Slots slots(group, experts, source);
    for (int64_t slot = 0; slot < experts[source].num_elements(); ++slot) {
      const int64_t row = slots.row[slot];
      if (row < 0 || row >= group.capacity) continue;
      const DispatchArgs& owner = ranks[slots.owner[slot]];
      for (int64_t h = 0; h < hidden; ++h) {
        Store(owner.rows, row * hidden + h, Load(mine.x, slot / group.topk * hidden + h));
      }
      if (mine.weights.has_value()) Store(owner.row_weights, row, Load(mine.weights, slot));
    }
  }
}

void CombineReference(const Group& group, const ConstTensorView* experts,
                      const CombineArgs* ranks) {
  for (int64_t source = 0; source < group.ranks; ++source) {
    const CombineArgs& mine = ranks[source];
    const int64_t hidden = mine.y.size(1);
    const Slots slots(group, experts, source);
    for (int64_t token = 0; token < experts[source].size(0); ++token) {
      std::vector<float> sum(hidden, 0.0f);
      for (int64_t expert = 0; expert < group.num_experts; ++expert) {
        for (int64_t slot = token * group.topk; slot < (token + 1) * group.topk; ++slot) {
          const bool kept = slots.row[slot] >= 0 && slots.row[slot] < group.capacity;
          if (experts[source].as<int32_t>()[slot] != expert || !kept) continue;
          const ConstTensorView rows = ranks[slots.owner[slot]].rows;
          for (int64_t h = 0; h < hidden; ++h) {
            sum[h] += Load(rows, slots.row[slot] * hidden + h);
          }
        }
      }
      for (int64_t h = 0; h < hidden; ++h) Store(mine.y, token * hidden + h, sum[h]);
    }
    for (size_t slot = 0; mine.weights.has_value() && slot < slots.row.size(); ++slot) {
      const bool kept = slots.row[slot] >= 0 && slots.row[slot] < group.capacity;
      Store(mine.weights, static_cast<int64_t>(slot),
            kept ? Load(ranks[slots.owner[slot]].row_weights, slots.row[slot]) : 0.0f);
    }
  }
}

}  // namespace anabranch::expert_parallel
