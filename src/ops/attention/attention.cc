// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/layout.h"
#include "tile/block.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

using attention::BlockView;
using attention::HeadRows;
using attention::kBlockKeys;
using attention::kPanelQueries;
using attention::Panel;
using attention::Sizes;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;
constexpr double kLn2 = 0.693147180559945309;

// What a worker keeps in its caches while it is at one panel of queries.
struct WorkerScratch {
  uint32_t* query;      // [words of D][64]
  float* scores;        // [kBlockKeys][64]
  uint32_t* shares;     // [words of kBlockKeys][64]
  float* accumulators;  // [Dv][64]
};

struct Scratch {
  const void* key;  // rows of whole words
  void* padded_key;
  uint32_t* values;  // [B][M][blocks][Dv][TransposedPitch]
  WorkerScratch* workers;
  int64_t bytes;
};

Scratch LayOut(const Sizes& sizes, int num_workers, void* block) {
  ScratchArena arena(block);
  Scratch s;
  s.padded_key =
      arena.Take<char>(attention::PaddedElements(sizes, sizes.size) * sizes.element_bytes());
  s.values = arena.Take<uint32_t>(sizes.batch * sizes.kv_heads * sizes.blocks() * sizes.value_size *
                                  attention::TransposedPitch(sizes));
  s.workers = arena.Take<WorkerScratch>(num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    WorkerScratch w;
    w.query = arena.Take<uint32_t>(sizes.words(sizes.size) * tile::kPanelColumns);
    w.scores = arena.Take<float>(kBlockKeys * tile::kPanelColumns);
    w.shares = arena.Take<uint32_t>(sizes.words(kBlockKeys) * tile::kPanelColumns);
    w.accumulators = arena.Take<float>(sizes.value_size * tile::kPanelColumns);
    if (block != nullptr) s.workers[worker] = w;
  }
  s.bytes = arena.used_bytes();
  return s;
}

uint32_t* ValueBlock(const Sizes& sizes, const Scratch& scratch, int64_t b, int64_t m,
                     int64_t block) {
  return scratch.values + ((b * sizes.kv_heads + m) * sizes.blocks() + block) * sizes.value_size *
                              attention::TransposedPitch(sizes);
}

// One panel of queries of one head, all the way from scores to output.
class PanelRun {
 public:
  PanelRun(const AttentionArgs& args, const Sizes& sizes, const Scratch& scratch, int64_t b,
           int64_t n, int worker)
      : args_(args),
        sizes_(sizes),
        scratch_(scratch),
        worker_(scratch.workers[worker]),
        kernels_(tile::Kernels()),
        b_(b),
        n_(n),
        m_(n / sizes.members()),
        keys_(scratch.key, sizes, sizes.kv_heads, sizes.whole_words(sizes.size), b, m_),
        output_(args.output.data(), sizes, sizes.heads, sizes.value_size, b, n) {}

  void Run(const Panel& panel) {
    std::fill_n(tops_, kPanelQueries, -kInfinity);
    std::fill_n(sums_, kPanelQueries, 0.0f);
    std::fill_n(worker_.accumulators, sizes_.value_size * tile::kPanelColumns, 0.0f);
    const HeadRows queries(args_.query.data(), sizes_, sizes_.heads, sizes_.size, b_, n_);
    const void* rows[kPanelQueries];
    queries.PointTo(panel.first, panel.count, rows);
    kernels_.pack(sizes_.type, sizes_.type)
        .transposed(rows, static_cast<int>(panel.count), 0, sizes_.size, worker_.query);
    // The panel that comes next, and the rows that Finish writes.
    const int64_t bytes = sizes_.element_bytes();
    queries.Prefetch(std::max<int64_t>(panel.first - kPanelQueries, 0), kPanelQueries,
                     sizes_.size * bytes);
    output_.Prefetch<true>(panel.first, panel.count, sizes_.value_size * bytes);
    for (int64_t block = 0; block * kBlockKeys < panel.end(sizes_); ++block) {
      const BlockView view = attention::ViewBlock(sizes_, panel, block * kBlockKeys);
      if (view.keys > 0) RunBlock(panel, view);
    }
    Finish(panel);
  }

 private:
  void RunBlock(const Panel& panel, const BlockView& view) {
    const tile::Softmax& softmax = kernels_.softmax(sizes_.type);
    const tile::ProductFn multiply = kernels_.product(sizes_.type);
    const float scale = args_.scale * kLog2E;
    alignas(kCacheLineBytes) float block_tops[kPanelQueries];
    std::fill_n(block_tops, kPanelQueries, -kInfinity);
    const void* rows[tile::kTileRows];
    for (int64_t row = 0; row < view.keys; row += tile::kTileRows) {
      const tile::ScoreTile t = attention::TileAt(panel, view, scale, row, worker_.scores);
      const int from = t.first_column;
      if (from == t.columns) continue;
      keys_.PointTo(view.first + row, t.rows, rows);
      keys_.Prefetch(view.first + row + 2 * tile::kTileRows, tile::kTileRows,
                     sizes_.size * sizes_.element_bytes());
      multiply(rows, t.rows, sizes_.words(sizes_.size), worker_.query + from, t.columns - from,
               t.scores + from, tile::kPanelColumns, tile::Store::kWrite);
      softmax.scale(t, block_tops);
    }
    softmax.advance(tops_, block_tops, sums_, worker_.accumulators, sizes_.value_size,
                    panel.columns);
    for (int64_t row = 0; row < view.keys; row += tile::kTileRows) {
      softmax.shares(attention::TileAt(panel, view, scale, row, worker_.scores), tops_, sums_,
                     worker_.shares + sizes_.words(row) * tile::kPanelColumns);
    }
    AddValues(panel, view);
  }

  // accumulators += value^T . shares
  void AddValues(const Panel& panel, const BlockView& view) {
    const uint32_t* values = ValueBlock(sizes_, scratch_, b_, m_, view.first / kBlockKeys);
    const void* rows[tile::kTileRows];
    for (int64_t index = 0; index < tile::NumRowTiles(sizes_.value_size); ++index) {
      const tile::RowTile at = tile::RowTileAt(sizes_.value_size, index);
      for (int r = 0; r < at.rows; ++r) {
        rows[r] = values + (at.first + r) * attention::TransposedPitch(sizes_);
      }
      kernels_.product(sizes_.type)(rows, at.rows, sizes_.words(view.keys), worker_.shares,
                                    panel.columns,
                                    worker_.accumulators + at.first * tile::kPanelColumns,
                                    tile::kPanelColumns, tile::Store::kAccumulate);
    }
  }

  void Finish(const Panel& panel) {
    float weights[kPanelQueries];
    float* log_sum_exp =
        args_.log_sum_exp.as<float>() + (b_ * sizes_.heads + n_) * sizes_.length + panel.first;
    for (int64_t q = 0; q < panel.count; ++q) {
      weights[q] = sums_[q] == 0 ? 0 : 1 / sums_[q];
      const double top = tops_[q] * kLn2;
      log_sum_exp[q] = static_cast<float>(sums_[q] == 0 ? -kInfinity : top + std::log(sums_[q]));
    }
    void* rows[kPanelQueries];
    output_.PointTo(panel.first, panel.count, rows);
    attention::StoreTransposed(sizes_, worker_.accumulators, sizes_.value_size, panel.count,
                               weights, rows);
  }

  const AttentionArgs& args_;
  const Sizes& sizes_;
  const Scratch& scratch_;
  const WorkerScratch worker_;
  const tile::KernelTable& kernels_;
  const int64_t b_, n_, m_;
  const HeadRows keys_, output_;
  alignas(kCacheLineBytes) float tops_[kPanelQueries];
  alignas(kCacheLineBytes) float sums_[kPanelQueries];
};

}  // namespace

int64_t AttentionScratchBytes(const AttentionArgs& args, int num_workers) {
  return LayOut(attention::SizesOf(args), num_workers, nullptr).bytes;
}

Status Attention(const AttentionArgs& args, Context& context) {
  Sizes sizes;
  ANABRANCH_RETURN_IF_ERROR(
      attention::Validate(args.query, args.key, args.value, args.segment_ids, &sizes));
  ANABRANCH_RETURN_IF_ERROR(
      attention::CheckView("output", args.output, sizes.type,
                           {sizes.batch, sizes.length, sizes.heads, sizes.value_size}));
  ANABRANCH_RETURN_IF_ERROR(attention::CheckView("log_sum_exp", args.log_sum_exp, DType::kF32,
                                                 {sizes.batch, sizes.heads, sizes.length}));
  Executor* executor = context.executor;
  Scratch scratch = LayOut(sizes, executor->num_workers(), context.scratch);
  ANABRANCH_RETURN_IF_ERROR(attention::CheckScratch(context, scratch.bytes));
  if (args.output.num_elements() == 0) return Status::Ok();
  scratch.key = attention::WholeWords(args.key, sizes, scratch.padded_key);

  executor->ParallelFor(sizes.batch * sizes.kv_heads * sizes.blocks(), [&](int64_t unit, int) {
    const int64_t block = unit % sizes.blocks(), head = unit / sizes.blocks();
    const int64_t b = head / sizes.kv_heads, m = head % sizes.kv_heads, first = block * kBlockKeys;
    const HeadRows values(args.value.data(), sizes, sizes.kv_heads, sizes.value_size, b, m);
    attention::TransposeBlock(values, sizes, first, std::min(kBlockKeys, sizes.length - first),
                              sizes.value_size, ValueBlock(sizes, scratch, b, m, block));
  });
  // Panels of one head follow each other, those with most keys first.
  executor->ParallelFor(sizes.batch * sizes.heads * sizes.panels(), [&](int64_t unit, int worker) {
    const int64_t panel = sizes.panels() - 1 - unit % sizes.panels();
    const int64_t head = unit / sizes.panels(), b = head / sizes.heads;
    const int32_t* ids = args.segment_ids.num_elements() == 0
                             ? nullptr
                             : args.segment_ids.as<int32_t>() + b * sizes.length;
    PanelRun(args, sizes, scratch, b, head % sizes.heads, worker)
        .Run(Panel(sizes, args.causal, ids, panel * kPanelQueries));
  });
  return Status::Ok();
}

}  // namespace anabranch
