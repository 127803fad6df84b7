// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/attention/layout.h"
#include "tile/block.h"
#include "tile/tile.h"

// For each pair of a block of queries and a block of keys, transposed as in the forward pass:
//   shares, grads [keys, queries]  from key . query^T and value . output_grad^T   (softmax.h)
//   value_grad [keys, Dv] += shares . output_grad      key_grad [keys, D] += grads . query
//   query_grad^T [D, queries] += key^T . grads
// The sums of a worker's keys lie in its scratch; those of its queries live for one block of them.
namespace anabranch {
namespace {

using attention::BlockView;
using attention::HeadRows;
using attention::kBlockKeys;
using attention::kPanelQueries;
using attention::Panel;
using attention::Sizes;
using tile::kPanelColumns;
using tile::kTileRows;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;

// Two panels: the products that contract over queries are then 64 words long.
constexpr int64_t kPanels = 2;
constexpr int64_t kBlockQueries = kPanels * kPanelQueries;
// Blocks of keys that one unit holds when a head is spread over several workers: enough to pay for
// packing the queries once more.
constexpr int64_t kUnitBlocks = 2;

struct WorkerScratch {
  // Of a block of queries: as columns [words of size][64] of each panel, and as rows
  // [words of kBlockQueries][64] of each 64 features.
  uint32_t* query_columns;
  uint32_t* output_grad_columns;
  uint32_t* query_rows;
  uint32_t* output_grad_rows;
  float* query_sums;  // [panels][D][64]
  // Of a block of keys: rows along the queries, and the panels that contract over keys.
  uint32_t* shares;  // [kBlockKeys][words of kBlockQueries]
  uint32_t* grads;
  uint32_t* grad_panels;  // [panels][words of kBlockKeys][64]
  // Of the unit's keys: [64s of features][keys][64].
  float* key_sums;
  float* value_sums;
};

struct Scratch {
  const void* key;  // rows of whole words
  const void* value;
  void* padded_key;
  void* padded_value;
  uint32_t* key_blocks;  // [B][M][blocks][D][TransposedPitch]
  WorkerScratch* workers;
  int64_t bytes;
};

int64_t QueryBlocks(const Sizes& sizes) { return CeilDiv(sizes.length, kBlockQueries); }
int64_t FeaturePanels(int64_t features) { return CeilDiv(features, kPanelColumns); }

// Whole heads are the cheapest units, since scores are computed once; but the workers that wait at
// the end must not cost more than that saves.
bool SplitsHeads(const Sizes& sizes, int num_workers) {
  const int64_t heads = sizes.batch * sizes.kv_heads;
  return 4 * heads < 3 * CeilDiv(heads, num_workers) * num_workers;
}

Scratch LayOut(const Sizes& sizes, int num_workers, void* block) {
  ScratchArena arena(block);
  Scratch s;
  const int64_t bytes = sizes.element_bytes();
  s.padded_key = arena.Take<char>(attention::PaddedElements(sizes, sizes.size) * bytes);
  s.padded_value = arena.Take<char>(attention::PaddedElements(sizes, sizes.value_size) * bytes);
  s.key_blocks = arena.Take<uint32_t>(sizes.batch * sizes.kv_heads * sizes.blocks() * sizes.size *
                                      attention::TransposedPitch(sizes));
  s.workers = arena.Take<WorkerScratch>(num_workers);
  const int64_t unit_blocks =
      SplitsHeads(sizes, num_workers) ? std::min(kUnitBlocks, sizes.blocks()) : sizes.blocks();
  const int64_t size_panels = FeaturePanels(sizes.size);
  const int64_t value_panels = FeaturePanels(sizes.value_size);
  const int64_t query_words = sizes.words(kBlockQueries), key_words = sizes.words(kBlockKeys);
  for (int worker = 0; worker < num_workers; ++worker) {
    WorkerScratch w;
    w.query_columns = arena.Take<uint32_t>(kPanels * sizes.words(sizes.size) * kPanelColumns);
    w.output_grad_columns =
        arena.Take<uint32_t>(kPanels * sizes.words(sizes.value_size) * kPanelColumns);
    w.query_rows = arena.Take<uint32_t>(size_panels * query_words * kPanelColumns);
    w.output_grad_rows = arena.Take<uint32_t>(value_panels * query_words * kPanelColumns);
    w.query_sums = arena.Take<float>(kPanels * sizes.size * kPanelColumns);
    w.shares = arena.Take<uint32_t>(kBlockKeys * query_words);
    w.grads = arena.Take<uint32_t>(kBlockKeys * query_words);
    w.grad_panels = arena.Take<uint32_t>(kPanels * key_words * kPanelColumns);
    w.key_sums = arena.Take<float>(size_panels * unit_blocks * kBlockKeys * kPanelColumns);
    w.value_sums = arena.Take<float>(value_panels * unit_blocks * kBlockKeys * kPanelColumns);
    if (block != nullptr) s.workers[worker] = w;
  }
  s.bytes = arena.used_bytes();
  return s;
}

uint32_t* KeyBlock(const Sizes& sizes, const Scratch& scratch, int64_t b, int64_t m,
                   int64_t block) {
  return scratch.key_blocks + ((b * sizes.kv_heads + m) * sizes.blocks() + block) * sizes.size *
                                  attention::TransposedPitch(sizes);
}

// Heads [first_head, end_head) of one key head, a range of query blocks, a range of key blocks, and
// which gradients come of it: those of the queries need all keys, those of the keys all queries.
struct Unit {
  int64_t b, m;
  int64_t first_head, end_head;
  int64_t first_query_block, end_query_block;
  int64_t first_block, end_block;
  bool query_grad, key_grads;
};

class UnitRun {
 public:
  UnitRun(const AttentionGradArgs& args, const Sizes& sizes, const Scratch& scratch,
          const Unit& unit, int worker)
      : args_(args),
        sizes_(sizes),
        scratch_(scratch),
        unit_(unit),
        worker_(scratch.workers[worker]),
        kernels_(tile::Kernels()),
        multiply_(kernels_.product(sizes.type)),
        keys_(scratch.key, sizes, sizes.kv_heads, sizes.whole_words(sizes.size), unit.b, unit.m),
        values_(scratch.value, sizes, sizes.kv_heads, sizes.whole_words(sizes.value_size), unit.b,
                unit.m),
        unit_keys_((unit.end_block - unit.first_block) * kBlockKeys) {}

  void Run() {
    if (unit_.key_grads) {
      const int64_t panel = unit_keys_ * kPanelColumns;
      std::fill_n(worker_.key_sums, FeaturePanels(sizes_.size) * panel, 0.0f);
      std::fill_n(worker_.value_sums, FeaturePanels(sizes_.value_size) * panel, 0.0f);
    }
    for (int64_t head = unit_.first_head; head < unit_.end_head; ++head) {
      for (int64_t i = unit_.first_query_block; i < unit_.end_query_block; ++i) {
        RunQueries(head, i * kBlockQueries);
      }
    }
    if (unit_.key_grads) StoreKeyGrads();
  }

 private:
  // The pairs of one block of queries with the unit's blocks of keys.
  void RunQueries(int64_t head, int64_t first_query) {
    const int32_t* ids = args_.segment_ids.num_elements() == 0
                             ? nullptr
                             : args_.segment_ids.as<int32_t>() + unit_.b * sizes_.length;
    const Panel panels[kPanels] = {
        Panel(sizes_, args_.causal, ids, first_query),
        Panel(sizes_, args_.causal, ids, std::min(first_query + kPanelQueries, sizes_.length))};
    const int64_t end = std::min(unit_.end_block * kBlockKeys, panels[1].end(sizes_));
    const bool has_keys = unit_.first_block * kBlockKeys < end;
    if (!has_keys && !unit_.query_grad) return;
    PackQueries(head, first_query, panels);
    if (unit_.query_grad) {
      QueryGrad(head).Prefetch<true>(first_query, panels[0].count + panels[1].count,
                                     sizes_.size * sizes_.element_bytes());
      std::fill_n(worker_.query_sums, kPanels * sizes_.size * kPanelColumns, 0.0f);
    }
    for (int64_t first = unit_.first_block * kBlockKeys; first < end; first += kBlockKeys) {
      const BlockView views[kPanels] = {attention::ViewBlock(sizes_, panels[0], first),
                                        attention::ViewBlock(sizes_, panels[1], first)};
      for (int64_t p = 0; p < kPanels; ++p) RunScores(p, panels[p], views[p]);
      if (unit_.key_grads) AddKeyGrads(panels, views);
      if (!unit_.query_grad) continue;
      for (int64_t p = 0; p < kPanels; ++p) AddQueryGrads(p, panels[p], views[p]);
    }
    if (unit_.query_grad) StoreQueryGrads(head, panels);
  }

  void PackQueries(int64_t head, int64_t first_query, const Panel* panels) {
    const int64_t count = panels[0].count + panels[1].count;
    const HeadRows query(args_.query.data(), sizes_, sizes_.heads, sizes_.size, unit_.b, head);
    const HeadRows grad(args_.output_grad.data(), sizes_, sizes_.heads, sizes_.value_size, unit_.b,
                        head);
    const HeadRows output(args_.output.data(), sizes_, sizes_.heads, sizes_.value_size, unit_.b,
                          head);
    const void* rows[kBlockQueries];
    const void* outputs[kBlockQueries];
    // The rows of the next block.
    const int64_t next = first_query + kBlockQueries, bytes = sizes_.element_bytes();
    query.Prefetch(next, kBlockQueries, sizes_.size * bytes);
    grad.Prefetch(next, kBlockQueries, sizes_.value_size * bytes);
    output.Prefetch(next, kBlockQueries, sizes_.value_size * bytes);
    query.PointTo(first_query, count, rows);
    PackBoth(rows, panels, sizes_.size, worker_.query_columns, worker_.query_rows);
    grad.PointTo(first_query, count, rows);
    PackBoth(rows, panels, sizes_.value_size, worker_.output_grad_columns,
             worker_.output_grad_rows);

    std::fill_n(normalisers_, kBlockQueries, kInfinity);  // no share for who is not there
    std::fill_n(means_, kBlockQueries, 0.0f);
    output.PointTo(first_query, count, outputs);
    kernels_.softmax(sizes_.type)
        .row_dots(rows, outputs, static_cast<int>(count), sizes_.value_size, means_);
    const float* log_sum_exp = args_.log_sum_exp.as<float>() +
                               (unit_.b * sizes_.heads + head) * sizes_.length + first_query;
    for (int64_t q = 0; q < count; ++q) {
      if (log_sum_exp[q] != -kInfinity) normalisers_[q] = log_sum_exp[q] * kLog2E;
    }
  }

  void PackBoth(const void* const* rows, const Panel* panels, int64_t features, uint32_t* columns,
                uint32_t* feature_panels) {
    const tile::Packer& pack = kernels_.pack(sizes_.type, sizes_.type);
    for (int64_t p = 0; p < kPanels; ++p) {
      pack.transposed(rows + p * kPanelQueries, static_cast<int>(panels[p].count), 0, features,
                      columns + p * sizes_.words(features) * kPanelColumns);
    }
    if (!unit_.key_grads) return;
    for (int64_t f = 0; f < features; f += kPanelColumns) {
      pack.rows(rows, panels[0].count + panels[1].count, f,
                static_cast<int>(std::min<int64_t>(kPanelColumns, features - f)), kPanelColumns,
                feature_panels + f * sizes_.words(kBlockQueries));
    }
  }

  // Shares and score gradients of one panel against one block.
  void RunScores(int64_t p, const Panel& panel, const BlockView& view) {
    alignas(kCacheLineBytes) float scores[kTileRows * kPanelColumns];
    alignas(kCacheLineBytes) float share_grads[kTileRows * kPanelColumns];
    const int64_t query_words = sizes_.words(sizes_.size);
    const int64_t value_words = sizes_.words(sizes_.value_size);
    const uint32_t* query = worker_.query_columns + p * query_words * kPanelColumns;
    const uint32_t* grad = worker_.output_grad_columns + p * value_words * kPanelColumns;
    const int64_t pitch = sizes_.words(kBlockQueries), at = p * sizes_.words(kPanelQueries);
    uint32_t* grad_panel = worker_.grad_panels + p * sizes_.words(kBlockKeys) * kPanelColumns;
    const void* rows[kTileRows];
    for (int64_t row = 0; row < view.keys; row += kTileRows) {
      tile::ScoreTile t = attention::TileAt(panel, view, args_.scale * kLog2E, row, nullptr);
      t.scores = scores;
      const int from = t.first_column, columns = t.columns - from;
      if (columns > 0) {
        const int64_t ahead = view.first + row + 2 * kTileRows, bytes = sizes_.element_bytes();
        keys_.Prefetch(ahead, kTileRows, sizes_.size * bytes);
        values_.Prefetch(ahead, kTileRows, sizes_.value_size * bytes);
        keys_.PointTo(view.first + row, t.rows, rows);
        multiply_(rows, t.rows, query_words, query + from, columns, scores + from, kPanelColumns,
                  tile::Store::kWrite);
        values_.PointTo(view.first + row, t.rows, rows);
        multiply_(rows, t.rows, value_words, grad + from, columns, share_grads + from,
                  kPanelColumns, tile::Store::kWrite);
      }
      kernels_.softmax(sizes_.type)
          .grads(t, share_grads, normalisers_ + p * kPanelQueries, means_ + p * kPanelQueries,
                 worker_.shares + row * pitch + at, worker_.grads + row * pitch + at, pitch,
                 grad_panel + sizes_.words(row) * kPanelColumns);
    }
  }

  // key_sums, value_sums += [keys, queries] . [queries, features], for the queries that see keys.
  void AddKeyGrads(const Panel* panels, const BlockView* views) {
    const int64_t keys = std::max(views[0].keys, views[1].keys);
    const int64_t first_key = views[0].first - unit_.first_block * kBlockKeys;
    for (int64_t row = 0; row < keys; row += kTileRows) {
      const int64_t p = row < views[0].keys ? 0 : 1;
      const int64_t hidden = attention::TileAt(panels[p], views[p], 1, row, nullptr).first_column;
      const int64_t begin = p * kPanelQueries + hidden;
      const int64_t end = row < views[1].keys ? kPanelQueries + panels[1].count : panels[0].count;
      const int rows = static_cast<int>(std::min<int64_t>(kTileRows, views[0].rows - row));
      AddRows(row, rows, begin, end, worker_.grads, worker_.query_rows, sizes_.size,
              worker_.key_sums + (first_key + row) * kPanelColumns);
      AddRows(row, rows, begin, end, worker_.shares, worker_.output_grad_rows, sizes_.value_size,
              worker_.value_sums + (first_key + row) * kPanelColumns);
    }
  }

  void AddRows(int64_t row, int rows, int64_t begin, int64_t end, const uint32_t* left,
               const uint32_t* right, int64_t features, float* sums) {
    if (begin >= end) return;
    const int64_t pitch = sizes_.words(kBlockQueries), first = sizes_.words(begin);
    const void* pointers[kTileRows];
    for (int r = 0; r < rows; ++r) pointers[r] = left + (row + r) * pitch + first;
    for (int64_t f = 0; f < features; f += kPanelColumns) {
      multiply_(pointers, rows, sizes_.words(end) - first,
                right + f * pitch + first * kPanelColumns,
                static_cast<int>(std::min<int64_t>(kPanelColumns, features - f)),
                sums + f * unit_keys_, kPanelColumns, tile::Store::kAccumulate);
    }
  }

  // query_sums += key^T . grads
  void AddQueryGrads(int64_t p, const Panel& panel, const BlockView& view) {
    if (view.keys == 0) return;
    const int64_t pitch = attention::TransposedPitch(sizes_);
    const uint32_t* keys = KeyBlock(sizes_, scratch_, unit_.b, unit_.m, view.first / kBlockKeys);
    float* sums = worker_.query_sums + p * sizes_.size * kPanelColumns;
    const void* rows[kTileRows];
    for (int64_t index = 0; index < tile::NumRowTiles(sizes_.size); ++index) {
      const tile::RowTile at = tile::RowTileAt(sizes_.size, index);
      for (int r = 0; r < at.rows; ++r) rows[r] = keys + (at.first + r) * pitch;
      multiply_(rows, at.rows, sizes_.words(view.keys),
                worker_.grad_panels + p * sizes_.words(kBlockKeys) * kPanelColumns, panel.columns,
                sums + at.first * kPanelColumns, kPanelColumns, tile::Store::kAccumulate);
    }
  }

  HeadRows QueryGrad(int64_t head) const {
    return HeadRows(args_.query_grad.data(), sizes_, sizes_.heads, sizes_.size, unit_.b, head);
  }

  void StoreQueryGrads(int64_t head, const Panel* panels) {
    const HeadRows out = QueryGrad(head);
    float weights[kPanelQueries];
    std::fill_n(weights, kPanelQueries, args_.scale);
    void* rows[kPanelQueries];
    for (int64_t p = 0; p < kPanels; ++p) {
      out.PointTo(panels[p].first, panels[p].count, rows);
      attention::StoreTransposed(sizes_, worker_.query_sums + p * sizes_.size * kPanelColumns,
                                 sizes_.size, panels[p].count, weights, rows);
    }
  }

  void StoreKeyGrads() {
    float weights[kBlockKeys];
    std::fill_n(weights, kBlockKeys, args_.scale);
    StoreRows(worker_.key_sums, args_.key_grad, weights);
    StoreRows(worker_.value_sums, args_.value_grad, nullptr);
  }

  void StoreRows(const float* sums, const TensorView& out, const float* weights) {
    const int64_t features = out.size(3);
    const HeadRows head(out.data(), sizes_, sizes_.kv_heads, features, unit_.b, unit_.m);
    void* rows[kBlockKeys];
    for (int64_t block = unit_.first_block; block < unit_.end_block; ++block) {
      const int64_t first = block * kBlockKeys, count = std::min(kBlockKeys, sizes_.length - first);
      head.Prefetch<true>(first + count, kBlockKeys, features * sizes_.element_bytes());
      for (int64_t f = 0; f < features; f += kPanelColumns) {
        head.PointTo(first, count, rows);
        for (int64_t r = 0; r < count; ++r) {
          rows[r] = static_cast<char*>(rows[r]) + f * sizes_.element_bytes();
        }
        kernels_.epilogue(sizes_.type)
            .store_weighted(
                sums + f * unit_keys_ + (first - unit_.first_block * kBlockKeys) * kPanelColumns,
                static_cast<int>(count),
                static_cast<int>(std::min<int64_t>(kPanelColumns, features - f)), weights, rows);
      }
    }
  }

  const AttentionGradArgs& args_;
  const Sizes& sizes_;
  const Scratch& scratch_;
  const Unit unit_;
  const WorkerScratch worker_;
  const tile::KernelTable& kernels_;
  const tile::ProductFn multiply_;
  const HeadRows keys_, values_;
  const int64_t unit_keys_;  // with room for a whole last block
  alignas(kCacheLineBytes) float normalisers_[kBlockQueries];
  alignas(kCacheLineBytes) float means_[kBlockQueries];
};

// Unit `index` of NumUnits: whole heads, or ranges of keys with most queries first, then blocks of
// queries with most keys first.
int64_t NumKeyUnits(const Sizes& sizes) {
  return sizes.batch * sizes.kv_heads * CeilDiv(sizes.blocks(), kUnitBlocks);
}
int64_t NumUnits(const Sizes& sizes, bool split) {
  if (!split) return sizes.batch * sizes.kv_heads;
  return NumKeyUnits(sizes) + sizes.batch * sizes.heads * QueryBlocks(sizes);
}

Unit UnitAt(const Sizes& sizes, bool split, int64_t index) {
  Unit unit;
  unit.first_query_block = 0;
  unit.end_query_block = QueryBlocks(sizes);
  unit.first_block = 0;
  unit.end_block = sizes.blocks();
  unit.query_grad = !split || index >= NumKeyUnits(sizes);
  unit.key_grads = !split || index < NumKeyUnits(sizes);
  const int64_t heads = sizes.batch * sizes.kv_heads, all_heads = sizes.batch * sizes.heads;
  int64_t head = index;
  if (split && unit.key_grads) {
    head = index % heads;
    unit.first_block = index / heads * kUnitBlocks;
    unit.end_block = std::min(unit.first_block + kUnitBlocks, sizes.blocks());
  }
  unit.b = head / sizes.kv_heads;
  unit.m = head % sizes.kv_heads;
  unit.first_head = unit.m * sizes.members();
  unit.end_head = unit.first_head + sizes.members();
  if (unit.key_grads) return unit;
  const int64_t left = index - NumKeyUnits(sizes);
  unit.b = left % all_heads / sizes.heads;
  unit.first_head = left % all_heads % sizes.heads;
  unit.end_head = unit.first_head + 1;
  unit.m = unit.first_head / sizes.members();
  unit.end_query_block = QueryBlocks(sizes) - left / all_heads;
  unit.first_query_block = unit.end_query_block - 1;
  return unit;
}

Status ValidateGrad(const AttentionGradArgs& args, Sizes* sizes) {
  ANABRANCH_RETURN_IF_ERROR(
      attention::Validate(args.query, args.key, args.value, args.segment_ids, sizes));
  const Sizes& s = *sizes;
  using attention::CheckView;
  const auto check = [&](const char* name, ConstTensorView view, int64_t heads, int64_t size) {
    return CheckView(name, view, s.type, {s.batch, s.length, heads, size});
  };
  ANABRANCH_RETURN_IF_ERROR(check("output", args.output, s.heads, s.value_size));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("log_sum_exp", args.log_sum_exp, DType::kF32, {s.batch, s.heads, s.length}));
  ANABRANCH_RETURN_IF_ERROR(check("output_grad", args.output_grad, s.heads, s.value_size));
  ANABRANCH_RETURN_IF_ERROR(check("query_grad", args.query_grad, s.heads, s.size));
  ANABRANCH_RETURN_IF_ERROR(check("key_grad", args.key_grad, s.kv_heads, s.size));
  return check("value_grad", args.value_grad, s.kv_heads, s.value_size);
}

}  // namespace

int64_t AttentionGradScratchBytes(const AttentionGradArgs& args, int num_workers) {
  return LayOut(attention::SizesOf(args), num_workers, nullptr).bytes;
}

Status AttentionGrad(const AttentionGradArgs& args, Context& context) {
  Sizes sizes;
  ANABRANCH_RETURN_IF_ERROR(ValidateGrad(args, &sizes));
  Executor* executor = context.executor;
  Scratch scratch = LayOut(sizes, executor->num_workers(), context.scratch);
  ANABRANCH_RETURN_IF_ERROR(attention::CheckScratch(context, scratch.bytes));
  if (args.key_grad.num_elements() == 0) return Status::Ok();
  scratch.key = attention::WholeWords(args.key, sizes, scratch.padded_key);
  scratch.value = attention::WholeWords(args.value, sizes, scratch.padded_value);

  executor->ParallelFor(sizes.batch * sizes.kv_heads * sizes.blocks(), [&](int64_t unit, int) {
    const int64_t block = unit % sizes.blocks(), head = unit / sizes.blocks();
    const int64_t b = head / sizes.kv_heads, m = head % sizes.kv_heads, first = block * kBlockKeys;
    const HeadRows keys(args.key.data(), sizes, sizes.kv_heads, sizes.size, b, m);
    attention::TransposeBlock(keys, sizes, first, std::min(kBlockKeys, sizes.length - first),
                              sizes.size, KeyBlock(sizes, scratch, b, m, block));
  });
  const bool split = SplitsHeads(sizes, executor->num_workers());
  executor->ParallelFor(NumUnits(sizes, split), [&](int64_t unit, int worker) {
    UnitRun(args, sizes, scratch, UnitAt(sizes, split, unit), worker).Run();
  });
  return Status::Ok();
}

}  // namespace anabranch
