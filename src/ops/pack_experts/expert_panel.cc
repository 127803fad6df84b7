// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/pack_experts/pack_experts.h"

namespace anabranch {
namespace {

constexpr int64_t kColumns = tile::kPanelColumns;

// Row pointers into one expert of a [experts, rows, columns] weight tensor.
void PointToRows(const ConstTensorView& weights, int64_t expert, int64_t first_row, int64_t count,
                 const void** pointers) {
  const int64_t pitch_bytes = weights.size(2) * SizeOf(weights.dtype());
  const char* base = static_cast<const char*>(weights.data()) +
                     (expert * weights.size(1) + first_row) * pitch_bytes;
  for (int64_t i = 0; i < count; ++i) pointers[i] = base + i * pitch_bytes;
}

// Rows [first_row, first_row + count), columns [first_column, first_column + columns).
tile::PanelPrefetch Prefetch(const ConstTensorView& weights, int64_t expert, int64_t first_row,
                             int64_t count, int64_t first_column, int64_t columns) {
  const int64_t bytes = SizeOf(weights.dtype()), pitch_bytes = weights.size(2) * bytes;
  const char* first = static_cast<const char*>(weights.data()) +
                      (expert * weights.size(1) + first_row) * pitch_bytes + first_column * bytes;
  return tile::PanelPrefetch(first, pitch_bytes, count, columns * bytes);
}

}  // namespace

ExpertPanelShape ShapeOf(ExpertPanel kind, DType dtype, int64_t hidden, int64_t width) {
  const auto shape = [](int64_t columns, int64_t panel_columns, int64_t words) {
    return ExpertPanelShape{CeilDiv(columns, panel_columns), panel_columns, columns, words};
  };
  const int64_t hidden_words = tile::WordsOf(dtype, hidden);
  const int64_t width_words = tile::WordsOf(dtype, width);
  switch (kind) {
    case ExpertPanel::kGateUp:
      return shape(width, tile::kGateColumns, hidden_words);
    case ExpertPanel::kDown:
      return shape(hidden, kColumns, width_words);
    case ExpertPanel::kDownTransposed:
      return shape(width, kColumns, hidden_words);
    case ExpertPanel::kGateUpTransposed:
      break;
  }
  return shape(hidden, kColumns, 2 * width_words);
}

void PackExpertPanel(const ExpertWeights& weights, ExpertPanel kind, DType dtype, int64_t expert,
                     int64_t panel, const void** pointers, uint32_t* out) {
  const int64_t hidden = weights.w_gate.size(1), width = weights.w_gate.size(2);
  const tile::Packer& packer = tile::Kernels().pack(weights.w_gate.dtype(), dtype);
  const ExpertPanelShape shape = ShapeOf(kind, dtype, hidden, width);
  const int64_t column = panel * shape.panel_columns;
  const int columns = shape.Columns(panel);
  const auto rows = [&](const ConstTensorView& from, int panel_width, uint32_t* to) {
    PointToRows(from, expert, 0, from.size(1), pointers);
    packer.rows(pointers, from.size(1), column, columns, panel_width, to);
  };
  const auto transposed = [&](const ConstTensorView& from, uint32_t* to) {
    PointToRows(from, expert, column, columns, pointers);
    packer.transposed(pointers, columns, 0, from.size(2), to);
  };
  switch (kind) {
    case ExpertPanel::kGateUp:
      rows(weights.w_gate, tile::kGateColumns, out);
      return rows(weights.w_up, tile::kGateColumns, out + tile::kGateColumns);
    case ExpertPanel::kDown:
      return rows(weights.w_down, tile::kPanelColumns, out);
    case ExpertPanel::kDownTransposed:
      return transposed(weights.w_down, out);
    case ExpertPanel::kGateUpTransposed:
      transposed(weights.w_gate, out);
      return transposed(weights.w_up, out + shape.panel_words() / 2);
  }
}

std::array<tile::PanelPrefetch, 2> PrefetchExpertPanel(const ExpertWeights& weights,
                                                       ExpertPanel kind, int64_t expert,
                                                       int64_t panel) {
  const int64_t hidden = weights.w_gate.size(1), width = weights.w_gate.size(2);
  const ExpertPanelShape shape = ShapeOf(kind, weights.w_gate.dtype(), hidden, width);
  const int64_t column = panel * shape.panel_columns, columns = shape.Columns(panel);
  switch (kind) {
    case ExpertPanel::kGateUp:
      return {Prefetch(weights.w_gate, expert, 0, hidden, column, columns),
              Prefetch(weights.w_up, expert, 0, hidden, column, columns)};
    case ExpertPanel::kDown:
      return {Prefetch(weights.w_down, expert, 0, width, column, columns), {}};
    case ExpertPanel::kDownTransposed:
      return {Prefetch(weights.w_down, expert, column, columns, 0, hidden), {}};
    case ExpertPanel::kGateUpTransposed:
      break;
  }
  return {Prefetch(weights.w_gate, expert, column, columns, 0, width),
          Prefetch(weights.w_up, expert, column, columns, 0, width)};
}

}  // namespace anabranch
