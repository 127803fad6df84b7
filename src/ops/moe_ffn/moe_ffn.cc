// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/moe_ffn/moe_ffn.h"

#include <algorithm>
#include <array>

#include "ops/moe_ffn/layout.h"
#include "ops/moe_ffn/token_sum.h"
#include "tile/block.h"

namespace anabranch {
namespace {

using moe_ffn::Rows;
using moe_ffn::Sizes;
using moe_ffn::TokenSum;
using moe_ffn::TokenSumScratch;
using moe_ffn::Unit;

struct Scratch {
  Rows rows;
  char* hidden;  // [rows, F']
  char* padded;  // x with whole words, if hidden is odd
  const void** x_rows;
  const void** hidden_rows;
  Unit* units;
  // One of each for every worker.
  uint32_t** panel;
  const void*** pointers;
  TokenSumScratch* token_sum;
  int64_t bytes;
};

int64_t GatePanels(const Sizes& sizes) { return CeilDiv(sizes.width, tile::kGateColumns); }

Scratch LayOut(const MoeFfnArgs& args, const Sizes& sizes, int num_workers, void* block) {
  ScratchArena arena(block);
  Scratch s;
  s.rows = moe_ffn::TakeRows(moe_ffn::CommonOf(args), sizes, &arena);
  s.hidden = arena.Take<char>(sizes.capacity * sizes.saved * sizes.element_bytes());
  s.padded = arena.Take<char>(moe_ffn::PaddedElements(sizes) * sizes.element_bytes());
  s.x_rows = arena.Take<const void*>(sizes.capacity);
  s.hidden_rows = arena.Take<const void*>(sizes.capacity);
  s.units = arena.Take<Unit>(moe_ffn::MaxUnits(sizes, GatePanels(sizes)));
  s.panel = arena.Take<uint32_t*>(num_workers);
  s.pointers = arena.Take<const void**>(num_workers);
  s.token_sum = arena.Take<TokenSumScratch>(num_workers);
  const int64_t hidden_words = tile::WordsOf(sizes.type, sizes.hidden);
  const int64_t saved_words = tile::WordsOf(sizes.type, sizes.saved);
  for (int worker = 0; worker < num_workers; ++worker) {
    uint32_t* panel = arena.Take<uint32_t>(hidden_words * tile::kPanelColumns);
    const void** pointers = arena.Take<const void*>(sizes.hidden);
    const TokenSumScratch token_sum =
        moe_ffn::TakeTokenSumScratch(sizes, saved_words, sizes.width, &arena);
    if (block == nullptr) continue;
    s.panel[worker] = panel;
    s.pointers[worker] = pointers;
    s.token_sum[worker] = token_sum;
  }
  s.bytes = arena.used_bytes();
  return s;
}

// hidden = activation(gathered x @ gate, gathered x @ up) for one unit.
void RunGateUp(const MoeFfnArgs& args, const Sizes& sizes, const Scratch& scratch, const Unit& unit,
               int worker) {
  const tile::KernelTable& kernels = tile::Kernels();
  const tile::Packer& packer = kernels.pack(sizes.weight_type, sizes.type);
  uint32_t* panel = scratch.panel[worker];
  const void** pointers = scratch.pointers[worker];
  const int64_t column = unit.panel * tile::kGateColumns;
  const int columns = static_cast<int>(std::min<int64_t>(tile::kGateColumns, sizes.width - column));
  moe_ffn::PointToWeightRows(args.w_gate, unit.expert, 0, sizes.hidden, pointers);
  packer.rows(pointers, sizes.hidden, column, columns, tile::kGateColumns, panel);
  moe_ffn::PointToWeightRows(args.w_up, unit.expert, 0, sizes.hidden, pointers);
  packer.rows(pointers, sizes.hidden, column, columns, tile::kGateColumns,
              panel + tile::kGateColumns);

  const int64_t bytes = sizes.element_bytes();
  // The last panel also writes the zero that fills an odd row's last word.
  const int stored = static_cast<int>(std::min<int64_t>(tile::kGateColumns, sizes.saved - column));
  char* saved = static_cast<char*>(args.gate_up.data());
  const bool saving = args.gate_up.num_elements() > 0;
  tile::ForEachRowTile(kernels.product(sizes.type), scratch.x_rows + unit.first, unit.rows,
                       tile::WordsOf(sizes.type, sizes.hidden), panel, tile::kPanelColumns,
                       [&](int64_t row, int count, const float* tile) {
                         void* gate[tile::kTileRows];
                         void* up[tile::kTileRows];
                         void* hidden[tile::kTileRows];
                         for (int r = 0; r < count; ++r) {
                           const int64_t at = unit.first + row + r;
                           hidden[r] = scratch.hidden + (at * sizes.saved + column) * bytes;
                           gate[r] = saved + (at * 2 * sizes.saved + column) * bytes;
                           up[r] = saved + (at * 2 * sizes.saved + sizes.saved + column) * bytes;
                         }
                         kernels.epilogue(sizes.type)
                             .activate(args.activation, tile, count, stored,
                                       saving ? gate : nullptr, saving ? up : nullptr, hidden);
                       });
}

TokenSum DownProduct(const MoeFfnArgs& args, const Sizes& sizes, const Scratch& scratch) {
  TokenSum sum;
  sum.a_rows = scratch.hidden_rows;
  sum.words = tile::WordsOf(sizes.type, sizes.saved);
  sum.row_weight = scratch.rows.weight;
  sum.out = args.y;
  sum.max_pointers = sizes.width;
  sum.pack = [&args, &sizes](int64_t expert, int64_t column, int columns, const void** pointers,
                             uint32_t* panel) {
    moe_ffn::PointToWeightRows(args.w_down, expert, 0, sizes.width, pointers);
    tile::Kernels()
        .pack(sizes.weight_type, sizes.type)
        .rows(pointers, sizes.width, column, columns, tile::kPanelColumns, panel);
  };
  sum.prefetch = [&args, &sizes](int64_t expert, int64_t column, int columns) {
    return std::array{
        moe_ffn::PrefetchWeights(args.w_down, expert, 0, sizes.width, column, columns),
        tile::PanelPrefetch()};
  };
  return sum;
}

}  // namespace

int64_t MoeFfnScratchBytes(const MoeFfnArgs& args, int num_workers) {
  return LayOut(args, moe_ffn::SizesOf(args), num_workers, nullptr).bytes;
}

Status MoeFfn(const MoeFfnArgs& args, Context& context) {
  Sizes sizes;
  ANABRANCH_RETURN_IF_ERROR(moe_ffn::Validate(moe_ffn::CommonOf(args), &sizes));
  ANABRANCH_RETURN_IF_ERROR(
      moe_ffn::CheckView("y", args.y, sizes.type, {sizes.tokens, sizes.hidden}));
  if (args.gate_up.num_elements() > 0) {
    ANABRANCH_RETURN_IF_ERROR(
        moe_ffn::CheckView("gate_up", args.gate_up, sizes.type, {sizes.capacity, 2 * sizes.saved}));
  }
  const Scratch scratch = LayOut(args, sizes, context.executor->num_workers(), context.scratch);
  if (context.scratch == nullptr || scratch.bytes > context.scratch_bytes) {
    return InvalidArgument("moe_ffn: scratch is ", context.scratch_bytes, " bytes; needs ",
                           scratch.bytes);
  }
  moe_ffn::FillRows(moe_ffn::CommonOf(args), sizes, scratch.rows);
  const int64_t bytes = sizes.element_bytes();
  moe_ffn::PointToTokens(moe_ffn::WholeWords(args.x, sizes, scratch.padded),
                         sizes.padded_hidden * bytes, sizes, scratch.rows, scratch.x_rows);
  moe_ffn::PointToRows(scratch.hidden, sizes.saved * bytes, sizes, scratch.hidden_rows);

  const int64_t units = moe_ffn::MakeUnits(sizes, scratch.rows, GatePanels(sizes), scratch.units);
  context.executor->ParallelFor(units, [&](int64_t unit, int worker) {
    RunGateUp(args, sizes, scratch, scratch.units[unit], worker);
  });
  moe_ffn::RunTokenSum(sizes, scratch.rows, DownProduct(args, sizes, scratch), scratch.token_sum,
                       context.executor);
  return Status::Ok();
}

}  // namespace anabranch
