// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <iterator>

#include "ops/moe_ffn/layout.h"
#include "ops/moe_ffn/moe_ffn.h"
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

// A block of one expert's weight gradient.
struct GradUnit {
  int32_t expert;
  int32_t matrix;  // 0 gate, 1 up, 2 down
  int64_t first;   // first row of the gradient matrix
};

struct Scratch {
  Rows rows;
  char* weighted_hidden;  // [rows, F']
  char* padded_x;
  char* padded_y_grad;
  const void** x_rows;
  const void** y_grad_rows;
  const void** grads_rows;
  const void** weighted_rows;
  Unit* units;
  GradUnit* grad_units;
  float* weight_grads;  // [panels of F][rows] partial sums of the router weights' gradients
  // One of each for every worker.
  uint32_t** panel;
  void** block;
  TokenSumScratch* token_sum;
  int64_t bytes;
};

int64_t WidthPanels(const Sizes& sizes) { return CeilDiv(sizes.width, tile::kPanelColumns); }

int64_t NumGradUnits(const Sizes& sizes) {
  return sizes.experts * (2 * CeilDiv(sizes.hidden, tile::kMaxBlockColumns) +
                          CeilDiv(sizes.width, tile::kMaxBlockColumns));
}

Scratch LayOut(const MoeFfnGradArgs& args, const Sizes& sizes, int num_workers, void* block) {
  ScratchArena arena(block);
  Scratch s;
  const int64_t bytes = sizes.element_bytes();
  s.rows = moe_ffn::TakeRows(moe_ffn::CommonOf(args), sizes, &arena);
  s.weighted_hidden = arena.Take<char>(sizes.capacity * sizes.saved * bytes);
  s.padded_x = arena.Take<char>(moe_ffn::PaddedElements(sizes) * bytes);
  s.padded_y_grad = arena.Take<char>(moe_ffn::PaddedElements(sizes) * bytes);
  s.x_rows = arena.Take<const void*>(sizes.capacity);
  s.y_grad_rows = arena.Take<const void*>(sizes.capacity);
  s.grads_rows = arena.Take<const void*>(sizes.capacity);
  s.weighted_rows = arena.Take<const void*>(sizes.capacity);
  s.units = arena.Take<Unit>(moe_ffn::MaxUnits(sizes, WidthPanels(sizes)));
  s.grad_units = arena.Take<GradUnit>(NumGradUnits(sizes));
  s.weight_grads = arena.Take<float>(WidthPanels(sizes) * sizes.capacity);
  s.panel = arena.Take<uint32_t*>(num_workers);
  s.block = arena.Take<void*>(num_workers);
  s.token_sum = arena.Take<TokenSumScratch>(num_workers);
  const int64_t hidden_words = tile::WordsOf(sizes.type, sizes.hidden);
  const int64_t saved_words = tile::WordsOf(sizes.type, 2 * sizes.saved);
  const int64_t block_columns =
      std::min(tile::kMaxBlockColumns, std::max(sizes.hidden, sizes.width));
  for (int worker = 0; worker < num_workers; ++worker) {
    uint32_t* panel = arena.Take<uint32_t>(hidden_words * tile::kPanelColumns);
    void* block_scratch = arena.Take<char>(
        tile::TransposedProductScratchBytes(sizes.type, sizes.capacity, block_columns));
    const TokenSumScratch token_sum = moe_ffn::TakeTokenSumScratch(sizes, saved_words, &arena);
    if (block == nullptr) continue;
    s.panel[worker] = panel;
    s.block[worker] = block_scratch;
    s.token_sum[worker] = token_sum;
  }
  s.bytes = arena.used_bytes();
  return s;
}

// d(hidden) = y_grad @ w_down^T for one unit, taken through the activation and the routing weight.
// next is the unit that this worker will probably take after it, or null.
void RunHiddenGrad(const MoeFfnGradArgs& args, const Sizes& sizes, const Scratch& scratch,
                   const PanelSource& panels, const Unit& unit, const Unit* next, int worker) {
  const tile::KernelTable& kernels = tile::Kernels();
  const int64_t column = unit.panel * tile::kPanelColumns;
  const void* pointers[tile::kPanelColumns];
  tile::Panel panel = panels.Get(unit.expert, unit.panel, pointers, scratch.panel[worker]);
  if (next != nullptr) panels.Announce(next->expert, next->panel, &panel);
  const int64_t bytes = sizes.element_bytes();
  // The last panel also writes the zero that fills an odd row's last word: gate and up are 0 there.
  const int stored = static_cast<int>(std::min<int64_t>(tile::kPanelColumns, sizes.saved - column));
  char* gate_up = static_cast<char*>(args.gate_up.data());
  const auto prepare = [&](int64_t row, int count) {
    for (int r = 0; r < count; ++r) {
      const int64_t at = unit.first + row + r;
      const int64_t gate_at = (at * 2 * sizes.saved + column) * bytes;
      const int64_t up_at = gate_at + sizes.saved * bytes;
      tile::PrefetchLines(gate_up + gate_at, stored * bytes);
      tile::PrefetchLines(gate_up + up_at, stored * bytes);
      tile::PrefetchLines(scratch.weighted_hidden + (at * sizes.saved + column) * bytes,
                          stored * bytes);
    }
  };
  const auto finish = [&](int64_t row, int count, const float* tile) {
    void* gate[tile::kTileRows];
    void* up[tile::kTileRows];
    void* hidden[tile::kTileRows];
    for (int r = 0; r < count; ++r) {
      const int64_t at = unit.first + row + r;
      const int64_t gate_at = (at * 2 * sizes.saved + column) * bytes;
      const int64_t up_at = gate_at + sizes.saved * bytes;
      gate[r] = gate_up + gate_at;
      up[r] = gate_up + up_at;
      hidden[r] = scratch.weighted_hidden + (at * sizes.saved + column) * bytes;
    }
    const int64_t first = unit.first + row;
    kernels.epilogue(sizes.type)
        .activate_grad(args.activation, tile, count, stored, scratch.rows.weight + first, gate, up,
                       gate, up, hidden,
                       scratch.weight_grads + unit.panel * sizes.capacity + first);
  };
  tile::ForEachRowTile(kernels, sizes.type, scratch.y_grad_rows + unit.first, unit.rows,
                       tile::WordsOf(sizes.type, sizes.hidden), panel, prepare, finish);
}

// The router weights' gradients: each row's partial sums, panels ascending.
void WriteWeightsGrad(const MoeFfnGradArgs& args, const Sizes& sizes, const Scratch& scratch) {
  float* out = args.weights_grad.as<float>();
  std::fill(out, out + sizes.tokens * sizes.k, 0.0f);
  for (int64_t row = 0; row < sizes.rows; ++row) {
    float sum = 0;
    for (int64_t panel = 0; panel < WidthPanels(sizes); ++panel) {
      sum += scratch.weight_grads[panel * sizes.capacity + row];
    }
    out[scratch.rows.slot[row]] = sum;
  }
}

// x_grad: rows [gate_grad | up_grad] against [w_gate | w_up]^T, added up per token.
TokenSum InputGrad(const MoeFfnGradArgs& args, const Sizes& sizes, const Scratch& scratch) {
  return {.a_rows = scratch.grads_rows,
          .words = tile::WordsOf(sizes.type, 2 * sizes.saved),
          .row_weight = nullptr,
          .out = args.x_grad,
          .panels = {moe_ffn::WeightsOf(args), args.packed.gate_up_transposed,
                     ExpertPanel::kGateUpTransposed, sizes}};
}

// Whether the units of gate compute up's gradient too: where experts are narrow, rearranging x is a
// good part of the work.
bool GateTakesUp(const Sizes& sizes) { return sizes.width <= tile::kMaxBlockColumns; }

// Experts with most rows first; within an expert the blocks that share x follow each other.
int64_t MakeGradUnits(const Sizes& sizes, const Rows& rows, GradUnit* units) {
  int64_t count = 0;
  for (int64_t i = 0; i < sizes.experts; ++i) {
    const int32_t expert = rows.expert_order[i];
    for (int32_t matrix = 0; matrix < 3; ++matrix) {
      if (matrix == 1 && GateTakesUp(sizes)) continue;
      const int64_t height = matrix == 2 ? sizes.width : sizes.hidden;
      for (int64_t first = 0; first < height; first += tile::kMaxBlockColumns) {
        units[count++] = {expert, matrix, first};
      }
    }
  }
  return count;
}

tile::TransposedProduct ProductOf(const MoeFfnGradArgs& args, const Sizes& sizes,
                                  const Scratch& scratch, const GradUnit& unit) {
  const TensorView outs[] = {args.w_gate_grad, args.w_up_grad, args.w_down_grad};
  const TensorView& out = outs[unit.matrix];
  const bool down = unit.matrix == 2;
  const int64_t first_row = scratch.rows.offsets[unit.expert];
  const auto block_of = [&](const TensorView& matrix) {
    return static_cast<char*>(matrix.data()) +
           (unit.expert * out.size(1) + unit.first) * out.size(2) * SizeOf(out.dtype());
  };
  tile::TransposedProduct product;
  product.a_rows = (down ? scratch.weighted_rows : scratch.x_rows) + first_row;
  product.b_rows = (down ? scratch.y_grad_rows : scratch.grads_rows) + first_row;
  product.num_rows = scratch.rows.offsets[unit.expert + 1] - first_row;
  product.a_dtype = product.b_dtype = product.dtype = sizes.type;
  product.first_a = unit.first;
  product.num_a = std::min(tile::kMaxBlockColumns, out.size(1) - unit.first);
  product.first_b = unit.matrix == 1 ? sizes.saved : 0;
  product.num_b = out.size(2);
  product.out = block_of(out);
  product.out_dtype = out.dtype();
  product.out_pitch = out.size(2);
  if (unit.matrix == 0 && GateTakesUp(sizes)) {
    product.second_b = sizes.saved;
    product.second_out = block_of(args.w_up_grad);
  }
  return product;
}

void RunWeightGrad(const MoeFfnGradArgs& args, const Sizes& sizes, const Scratch& scratch,
                   const GradUnit& unit, const GradUnit* next, int worker) {
  tile::TransposedProduct product = ProductOf(args, sizes, scratch, unit), next_product;
  if (next != nullptr) {
    next_product = ProductOf(args, sizes, scratch, *next);
    product.next = &next_product;
  }
  tile::TransposedProductBlock(tile::Kernels(), product, scratch.block[worker]);
  tile::StreamFence();
}

Status ValidateGrad(const MoeFfnGradArgs& args, Sizes* sizes) {
  ANABRANCH_RETURN_IF_ERROR(moe_ffn::Validate(moe_ffn::CommonOf(args), sizes));
  const Sizes& s = *sizes;
  using moe_ffn::CheckView;
  if (args.packed.down_transposed.has_value() || args.packed.gate_up_transposed.has_value()) {
    ANABRANCH_RETURN_IF_ERROR(moe_ffn::CheckPacking(args.x));
    ANABRANCH_RETURN_IF_ERROR(
        CheckGradientPanels("moe_ffn", args.packed, s.experts, s.hidden, s.width));
  }
  ANABRANCH_RETURN_IF_ERROR(CheckView("gate_up", args.gate_up, s.type, {s.capacity, 2 * s.saved}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("y_grad", args.y_grad, s.type, {s.tokens, s.hidden}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("x_grad", args.x_grad, s.type, {s.tokens, s.hidden}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("weights_grad", args.weights_grad, DType::kF32, {s.tokens, s.k}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("w_gate_grad", args.w_gate_grad, s.weight_type, {s.experts, s.hidden, s.width}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("w_up_grad", args.w_up_grad, s.weight_type, {s.experts, s.hidden, s.width}));
  return CheckView("w_down_grad", args.w_down_grad, s.weight_type, {s.experts, s.width, s.hidden});
}

void PointAllRows(const MoeFfnGradArgs& args, const Sizes& sizes, const Scratch& scratch) {
  const int64_t bytes = sizes.element_bytes(), pitch = sizes.padded_hidden * bytes;
  moe_ffn::PointToTokens(moe_ffn::WholeWords(args.x, sizes, scratch.padded_x), pitch, sizes,
                         scratch.rows, scratch.x_rows);
  moe_ffn::PointToTokens(moe_ffn::WholeWords(args.y_grad, sizes, scratch.padded_y_grad), pitch,
                         sizes, scratch.rows, scratch.y_grad_rows);
  moe_ffn::PointToRows(args.gate_up.data(), 2 * sizes.saved * bytes, sizes, scratch.grads_rows);
  moe_ffn::PointToRows(scratch.weighted_hidden, sizes.saved * bytes, sizes, scratch.weighted_rows);
}

}  // namespace

int64_t MoeFfnGradScratchBytes(const MoeFfnGradArgs& args, int num_workers) {
  return LayOut(args, moe_ffn::SizesOf(args), num_workers, nullptr).bytes;
}

Status MoeFfnGrad(const MoeFfnGradArgs& args, Context& context) {
  Sizes sizes;
  ANABRANCH_RETURN_IF_ERROR(ValidateGrad(args, &sizes));
  Executor* executor = context.executor;
  const Scratch scratch = LayOut(args, sizes, executor->num_workers(), context.scratch);
  if (context.scratch == nullptr || scratch.bytes > context.scratch_bytes) {
    return InvalidArgument("moe_ffn: scratch is ", context.scratch_bytes, " bytes; needs ",
                           scratch.bytes);
  }
  moe_ffn::FillRows(moe_ffn::CommonOf(args), sizes, scratch.rows);
  PointAllRows(args, sizes, scratch);

  const PanelSource down(moe_ffn::WeightsOf(args), args.packed.down_transposed,
                         ExpertPanel::kDownTransposed, sizes);
  const int64_t units = moe_ffn::MakeUnits(sizes, scratch.rows, WidthPanels(sizes), scratch.units);
  executor->ParallelFor(units, [&](int64_t unit, int worker) {
    const int64_t next = unit + executor->num_workers();
    RunHiddenGrad(args, sizes, scratch, down, scratch.units[unit],
                  next < units ? &scratch.units[next] : nullptr, worker);
  });
  WriteWeightsGrad(args, sizes, scratch);
  moe_ffn::RunTokenSum(sizes, scratch.rows, InputGrad(args, sizes, scratch), scratch.token_sum,
                       executor);
  const int64_t grad_units = MakeGradUnits(sizes, scratch.rows, scratch.grad_units);
  executor->ParallelFor(grad_units, [&](int64_t unit, int worker) {
    const int64_t next = unit + executor->num_workers();
    RunWeightGrad(args, sizes, scratch, scratch.grad_units[unit],
                  next < grad_units ? &scratch.grad_units[next] : nullptr, worker);
  });
  return Status::Ok();
}

}  // namespace anabranch
