// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_RAGGED_PLAN_RAGGED_PLAN_COST_H_
#define ANABRANCH_OPS_RAGGED_PLAN_RAGGED_PLAN_COST_H_

#include <cstdint>

// Bytes that must move to and from memory, each operand once. None of these does arithmetic that
// counts: they are bound by memory. used_rows is group_offsets[E].

namespace anabranch {

// experts is read twice (histogram, scatter); slot_row, row_token, sizes and offsets are written.
constexpr int64_t RaggedPlanBytes(int64_t tokens, int64_t topk, int64_t num_experts,
                                  int64_t num_rows) {
  return 4 * (3 * tokens * topk + num_rows + 2 * num_experts + 1);
}

// Each used row is read and written, the rest only written.
constexpr int64_t GatherRowsBytes(int64_t used_rows, int64_t num_rows, int64_t hidden,
                                  int64_t element_bytes) {
  return (used_rows + num_rows) * hidden * element_bytes + 4 * num_rows;
}

constexpr int64_t CombineRowsBytes(int64_t tokens, int64_t topk, int64_t used_rows, int64_t hidden,
                                   int64_t element_bytes) {
  return (used_rows + tokens) * hidden * element_bytes + 8 * tokens * topk;
}

// Reads rows and d_y, writes d_rows.
constexpr int64_t CombineRowsGradBytes(int64_t tokens, int64_t topk, int64_t used_rows,
                                       int64_t num_rows, int64_t hidden, int64_t element_bytes) {
  return (used_rows + num_rows + tokens) * hidden * element_bytes + 12 * tokens * topk;
}

constexpr int64_t CombineRowsFlops(int64_t used_rows, int64_t hidden) {
  return 2 * used_rows * hidden;
}

constexpr int64_t CombineRowsGradFlops(int64_t used_rows, int64_t hidden) {
  return 3 * used_rows * hidden;
}

}  // namespace anabranch

#endif  // ANABRANCH_OPS_RAGGED_PLAN_RAGGED_PLAN_COST_H_
