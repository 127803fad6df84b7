// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/moe_ffn/moe_ffn.h"

#include <algorithm>
#include <array>

#include "ops/moe_ffn/layout.h"
#include "ops/moe_ffn/token_sum.h"
#include "tile/block.h"

namespace anabranch {
namespace {

using moe_ffn::PanelSource;
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
    const void** pointers = arena.Take<const void*>(ExpertPanelPointers(sizes.hidden, sizes.width));
    const TokenSumScratch token_sum = moe_ffn::TakeTokenSumScratch(sizes, saved_words, &arena);
    if (block == nullptr) continue;
    s.panel[worker] = panel;
    s.pointers[worker] = pointers;
    s.token_sum[worker] = token_sum;
  }
  s.bytes = arena.used_bytes();
  return s;
}

// hidden = activation(gathered x @ gate, gathered x @ up) for one unit. next is the unit that this
// worker will probably take after it, or null.
void RunGateUp(const MoeFfnArgs& args, const Sizes& sizes, const Scratch& scratch,
               const PanelSource& panels, const Unit& unit, const Unit* next, int worker) {
  const tile::KernelTable& kernels = tile::Kernels();
  const int64_t column = unit.panel * tile::kGateColumns;
  tile::Panel panel =
      panels.Get(unit.expert, unit.panel, scratch.pointers[worker], scratch.panel[worker]);
  if (next != nullptr) panels.Announce(next->expert, next->panel, &panel);
  const int64_t bytes = sizes.element_bytes();
  // The last panel also writes the zero that fills an odd row's last word.
  const int stored = static_cast<int>(std::min<int64_t>(tile::kGateColumns, sizes.saved - column));
  char* saved = static_cast<char*>(args.gate_up.data());
  const bool saving = args.gate_up.num_elements() > 0;
  const auto finish = [&](int64_t row, int count, const float* tile) {
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
        .activate(args.activation, tile, count, stored, saving ? gate : nullptr,
                  saving ? up : nullptr, hidden);
  };
  tile::ForEachRowTile(
      kernels, sizes.type, scratch.x_rows + unit.first, unit.rows,
      tile::WordsOf(sizes.type, sizes.hidden), panel, [](int64_t, int) {}, finish);
}

TokenSum DownProduct(const MoeFfnArgs& args, const Sizes& sizes, const Scratch& scratch) {
  return {.a_rows = scratch.hidden_rows,
          .words = tile::WordsOf(sizes.type, sizes.saved),
          .row_weight = scratch.rows.weight,
          .out = args.y,
          .panels = {moe_ffn::WeightsOf(args), args.packed.down, ExpertPanel::kDown, sizes}};
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
  if (args.packed.gate_up.has_value() || args.packed.down.has_value()) {
    ANABRANCH_RETURN_IF_ERROR(moe_ffn::CheckPacking(args.x));
    ANABRANCH_RETURN_IF_ERROR(
        CheckForwardPanels("moe_ffn", args.packed, sizes.experts, sizes.hidden, sizes.width));
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

  const PanelSource gate_up(moe_ffn::WeightsOf(args), args.packed.gate_up, ExpertPanel::kGateUp,
                            sizes);
  const int64_t units = moe_ffn::MakeUnits(sizes, scratch.rows, GatePanels(sizes), scratch.units);
  context.executor->ParallelFor(units, [&](int64_t unit, int worker) {
    const int64_t next = unit + context.executor->num_workers();
    RunGateUp(args, sizes, scratch, gate_up, scratch.units[unit],
              next < units ? &scratch.units[next] : nullptr, worker);
  });
  moe_ffn::RunTokenSum(sizes, scratch.rows, DownProduct(args, sizes, scratch), scratch.token_sum,
                       context.executor);
  return Status::Ok();
}

}  // namespace anabranch
