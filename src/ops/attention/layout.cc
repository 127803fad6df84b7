// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/attention/layout.h"

#include <cstring>

namespace anabranch::attention {

Status CheckView(const char* name, ConstTensorView view, DType dtype,
                 std::initializer_list<int64_t> shape) {
  if (view.dtype() == dtype && view.HasShape(shape)) return Status::Ok();
  return InvalidArgument("attention: ", name, " is ", view.ToString(), "; must be ",
                         ConstTensorView(nullptr, dtype, shape).ToString());
}

Status Validate(ConstTensorView query, ConstTensorView key, ConstTensorView value,
                ConstTensorView segment_ids, Sizes* sizes) {
  if (query.rank() != 4 || key.rank() != 4 || value.rank() != 4) {
    return InvalidArgument("attention: query is ", query.ToString(), ", key ", key.ToString(),
                           ", value ", value.ToString(), "; each must be [B,S,heads,size]");
  }
  if (query.dtype() != DType::kBF16 && query.dtype() != DType::kF32) {
    return InvalidArgument("attention: query is ", query.ToString(), "; must be bf16 or f32");
  }
  const int64_t batch = query.size(0), length = query.size(1), kv_heads = key.size(2);
  if (kv_heads < 1 || query.size(2) % kv_heads != 0) {
    return InvalidArgument("attention: query is ", query.ToString(), ", key ", key.ToString(),
                           "; query heads must be a multiple of key heads");
  }
  if (query.size(3) < 1 || value.size(3) < 1) {
    return InvalidArgument("attention: query is ", query.ToString(), ", value ", value.ToString(),
                           "; head sizes must be >= 1");
  }
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("key", key, query.dtype(), {batch, length, kv_heads, query.size(3)}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("value", value, query.dtype(), {batch, length, kv_heads, value.size(3)}));
  if (segment_ids.num_elements() > 0) {
    ANABRANCH_RETURN_IF_ERROR(CheckView("segment_ids", segment_ids, DType::kI32, {batch, length}));
  }
  *sizes = {query.dtype(), batch, length, query.size(2), kv_heads, query.size(3), value.size(3)};
  return Status::Ok();
}

Status CheckScratch(const Context& context, int64_t bytes) {
  if (bytes == 0 || (context.scratch != nullptr && context.scratch_bytes >= bytes)) {
    return Status::Ok();
  }
  return InvalidArgument("attention: scratch is ", context.scratch_bytes, " bytes; needs ", bytes);
}

int64_t PaddedElements(const Sizes& sizes, int64_t row_elements) {
  const int64_t whole = sizes.whole_words(row_elements);
  return whole == row_elements ? 0 : sizes.batch * sizes.length * sizes.kv_heads * whole;
}

const void* WholeWords(ConstTensorView view, const Sizes& sizes, void* padded) {
  const int64_t elements = view.size(3), whole = sizes.whole_words(elements);
  if (whole == elements) return view.data();
  const BF16* from = view.as<BF16>();
  BF16* to = static_cast<BF16*>(padded);
  for (int64_t row = 0; row < sizes.batch * sizes.length * sizes.kv_heads; ++row) {
    std::memcpy(to, from, elements * sizeof(BF16));
    to[elements] = BF16{};
    from += elements;
    to += whole;
  }
  return padded;
}

void TransposeBlock(const HeadRows& head, const Sizes& sizes, int64_t first, int64_t count,
                    int64_t features, uint32_t* out) {
  const void* rows[kBlockKeys];
  head.PointTo(first, count, rows);
  tile::Kernels()
      .pack(sizes.type, sizes.type)
      .transpose(rows, count, 0, features, out, TransposedPitch(sizes));
}

Panel::Panel(const Sizes& sizes, bool is_causal, const int32_t* sequence_ids, int64_t first_query)
    : first(first_query),
      count(std::min(kPanelQueries, sizes.length - first_query)),
      columns(static_cast<int>(RoundUp(count, 16))),
      causal(is_causal),
      ids(sequence_ids) {
  if (ids == nullptr || count == 0) return;
  std::copy_n(ids + first, count, padded_ids);
  const auto [lowest, highest] = std::minmax_element(ids + first, ids + first + count);
  lowest_id = *lowest;
  highest_id = *highest;
}

BlockView ViewBlock(const Sizes& sizes, const Panel& panel, int64_t first_key) {
  BlockView view;
  view.first = first_key;
  view.rows = std::min(kBlockKeys, sizes.length - first_key);
  const int64_t end = panel.count == 0 ? 0 : panel.end(sizes);
  view.keys = std::clamp<int64_t>(end - first_key, 0, view.rows);
  view.by_segment = false;
  if (panel.ids == nullptr || view.keys == 0) return view;
  const int32_t* ids = panel.ids + first_key;
  const auto [lowest, highest] = std::minmax_element(ids, ids + view.keys);
  const bool apart = *highest < panel.lowest_id || *lowest > panel.highest_id;
  const bool padding = *lowest == 0 && *highest == 0;
  if (apart || padding || panel.is_padding()) {
    view.keys = 0;
    return view;
  }
  view.by_segment = *lowest != *highest || panel.lowest_id != panel.highest_id;
  return view;
}

tile::ScoreTile TileAt(const Panel& panel, const BlockView& block, float scale, int64_t row,
                       float* scores) {
  tile::ScoreTile t;
  t.scores = scores + row * tile::kPanelColumns;
  t.rows = static_cast<int>(std::min<int64_t>(tile::kTileRows, block.rows - row));
  t.columns = panel.columns;
  t.scale = scale;
  t.diagonal = panel.causal ? block.first + row - panel.first : tile::kNoDiagonal;
  const int64_t hidden = std::clamp<int64_t>(t.diagonal, 0, panel.columns);
  t.first_column = static_cast<int>(hidden / 16 * 16);
  t.key_segments = block.by_segment ? panel.ids + block.first + row : nullptr;
  t.query_segments = block.by_segment ? panel.padded_ids : nullptr;
  return t;
}

void StoreTransposed(const Sizes& sizes, const float* acc, int64_t features, int64_t queries,
                     const float* weights, void* const* out_rows) {
  const tile::KernelTable& kernels = tile::Kernels();
  alignas(kCacheLineBytes) float tile[kPanelQueries * tile::kPanelColumns];
  const void* rows[tile::kPanelColumns];
  void* out[kPanelQueries];
  for (int64_t f = 0; f < features; f += tile::kPanelColumns) {
    const int64_t count = std::min<int64_t>(tile::kPanelColumns, features - f);
    for (int64_t i = 0; i < count; ++i) rows[i] = acc + (f + i) * tile::kPanelColumns;
    kernels.pack_f32_f32.transpose(rows, count, 0, queries, reinterpret_cast<uint32_t*>(tile),
                                   tile::kPanelColumns);
    for (int64_t q = 0; q < queries; ++q) {
      out[q] = static_cast<char*>(out_rows[q]) + f * sizes.element_bytes();
    }
    kernels.epilogue(sizes.type)
        .store_weighted(tile, static_cast<int>(queries), static_cast<int>(count), weights, out);
  }
}

}  // namespace anabranch::attention
