// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
//
// The weight gradient contracts over a group's rows. A unit of work is one block of one group's
// matrix: up to 512 of its rows (so that the rearranged x is shared by many columns) times a slab
// of its columns. Blocks never share an output element, so no sum crosses workers.
#include <cstddef>

#include "ops/grouped_gemm/arguments.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/grouped_gemm/schedule.h"
#include "tile/block.h"
#include "tile/tile.h"
#include "tile/tree_block.h"

namespace anabranch {
namespace {

// A slab narrower than two panels, or a block of fewer rows than this, spends more time on
// rearranging than it saves by balance.
constexpr int64_t kMinSlabColumns = 2 * tile::kPanelColumns;
constexpr int64_t kMinBlockRows = 48;
// Units of one large group are of equal size, so few are enough.
constexpr int64_t kUnitsPerWorkerOfWgrad = 4;

struct Scratch {
  Scratch(void* block, const GroupedGemmWgradArgs& args, int num_workers)
      : arena(block), schedule(&arena, args.dw.size(0)) {
    const int64_t num_rows = args.x.size(0);
    x_rows = arena.Take<const void*>(num_rows);
    dy_rows = arena.Take<const void*>(num_rows);
    worker_bytes = RoundUp(BlockBytes(args), kCacheLineBytes);
    workers = arena.Take<std::byte>(worker_bytes * num_workers);
  }

  // Neither a tree nor a scale.
  static bool IsPlain(const GroupedGemmWgradArgs& args) {
    return args.num_leaves == 1 && !args.scale.has_value();
  }

  static int64_t BlockBytes(const GroupedGemmWgradArgs& args) {
    const int64_t columns = std::min(args.x.size(1), tile::kMaxBlockColumns);
    if (IsPlain(args)) {
      return tile::TransposedProductScratchBytes(args.x.dtype(), args.x.size(0), columns);
    }
    return tile::TransposedTreeScratchBytes(args.x.dtype(), args.x.size(0), columns,
                                            static_cast<int>(args.num_leaves));
  }

  ScratchArena arena;
  Schedule schedule;
  const void** x_rows;
  const void** dy_rows;
  std::byte* workers;
  int64_t worker_bytes;
};

// How the [K, N] gradient of a group is cut.
struct Cut {
  int64_t blocks;  // of rows
  int64_t slabs;   // of columns
};

// Every slab rearranges x anew and every block packs dy anew, which is twice as quick per element:
// of the cuts into enough units, the one that repeats least.
Cut CutOf(const GroupedGemmProblem& problem, int64_t wanted_units) {
  const int64_t min_blocks = CeilDiv(problem.k, tile::kMaxBlockColumns);
  const int64_t max_blocks = std::max(min_blocks, problem.k / kMinBlockRows);
  Cut best{min_blocks, 1};
  double best_cost = -1;
  for (int64_t slabs = 1; slabs <= CeilDiv(problem.n, kMinSlabColumns); ++slabs) {
    const int64_t blocks = std::max(min_blocks, CeilDiv(wanted_units, slabs));
    const double cost = 2.0 * slabs * problem.k + 1.0 * blocks * problem.n;
    if (blocks <= max_blocks && (best_cost < 0 || cost < best_cost)) {
      best = {blocks, slabs};
      best_cost = cost;
    }
  }
  return best_cost < 0 ? Cut{max_blocks, CeilDiv(problem.n, kMinSlabColumns)} : best;
}

class WgradRun {
 public:
  WgradRun(const GroupedGemmWgradArgs& args, const GroupedGemmProblem& problem,
           const Context& context)
      : args_(args),
        problem_(problem),
        kernels_(tile::Kernels()),
        executor_(context.executor),
        scratch_(context.scratch, args, context.executor->num_workers()) {}

  void Run() {
    if (problem_.k == 0 || problem_.n == 0) return;
    FillRowPointers();
    scratch_.schedule.Fill(problem_, [&](int64_t rows) {
      const Cut cut = CutOfRows(rows);
      return cut.blocks * cut.slabs;
    });
    executor_->ParallelFor(scratch_.schedule.num_units(), [&](int64_t unit, int worker) {
      const Schedule::Unit at = scratch_.schedule.At(unit);
      const Cut cut = CutOfRows(scratch_.schedule.rows(at.group));
      RunBlock(at.group, PartOf(problem_.k, cut.blocks, at.index / cut.slabs, 1),
               PartOf(problem_.n, cut.slabs, at.index % cut.slabs, tile::kPanelColumns), worker);
    });
  }

 private:
  void FillRowPointers() {
    for (int64_t r = 0; r < problem_.num_used_rows; ++r) {
      const int64_t size = SizeOf(args_.x.dtype());
      scratch_.x_rows[r] = args_.x.as<std::byte>() + r * problem_.k * size;
      scratch_.dy_rows[r] = args_.dy.as<std::byte>() + r * problem_.n * size;
    }
  }

  // A group gets units in proportion to its rows.
  Cut CutOfRows(int64_t rows) const {
    const int64_t workers = executor_->num_workers();
    const int64_t wanted = workers == 1 ? 1 : workers * kUnitsPerWorkerOfWgrad;
    return CutOf(problem_, CeilDiv(rows * wanted, std::max<int64_t>(problem_.num_used_rows, 1)));
  }

  void RunBlock(int64_t group, Range block, Range slab, int worker) {
    const int64_t first_row = scratch_.schedule.first_row(group);
    const DType type = args_.x.dtype();
    const int64_t out_index = (group * problem_.k + block.begin) * problem_.n + slab.begin;
    const tile::TransposedProduct product = {
        .a_rows = scratch_.x_rows + first_row,
        .b_rows = scratch_.dy_rows + first_row,
        .num_rows = scratch_.schedule.rows(group),
        .a_dtype = type,
        .b_dtype = type,
        .dtype = type,
        .first_a = block.begin,
        .num_a = block.end - block.begin,
        .first_b = slab.begin,
        .num_b = slab.end - slab.begin,
        .out = args_.dw.as<std::byte>() + out_index * SizeOf(args_.dw.dtype()),
        .out_dtype = args_.dw.dtype(),
        .out_pitch = problem_.n,
    };
    Multiply(product, group, scratch_.workers + worker * scratch_.worker_bytes);
    tile::StreamFence();
  }

  void Multiply(const tile::TransposedProduct& product, int64_t group, void* scratch) {
    const int leaves = static_cast<int>(args_.num_leaves);
    if (Scratch::IsPlain(args_)) return tile::TransposedProductBlock(kernels_, product, scratch);
    int64_t begin[tile::kMaxLeaves + 1];
    for (int i = 0; i <= leaves; ++i) begin[i] = tile::LeafBegin(product.num_rows, leaves, i);
    const float scale = args_.scale.has_value() ? args_.scale.as<float>()[group] : 1.0f;
    tile::TransposedTreeBlock(kernels_, product, {begin, leaves, scale}, scratch);
  }

  const GroupedGemmWgradArgs& args_;
  const GroupedGemmProblem& problem_;
  const tile::KernelTable& kernels_;
  Executor* const executor_;
  Scratch scratch_;
};

}  // namespace

int64_t GroupedGemmWgradScratchBytes(const GroupedGemmWgradArgs& args, int num_workers) {
  return Scratch(nullptr, args, num_workers).arena.used_bytes();
}

Status GroupedGemmWgrad(const GroupedGemmWgradArgs& args, const Context& context) {
  GroupedGemmProblem problem;
  ANABRANCH_RETURN_IF_ERROR(Validate(args, &problem));
  if (!tile::IsLeafCount(args.num_leaves)) {
    return InvalidArgument("grouped_gemm_wgrad: num_leaves=", args.num_leaves,
                           "; must be a power of two up to ", tile::kMaxLeaves);
  }
  if (args.scale.has_value() &&
      (args.scale.dtype() != DType::kF32 || !args.scale.HasShape({problem.num_groups}))) {
    return InvalidArgument("grouped_gemm_wgrad: scale is ", args.scale.ToString(),
                           "; must be f32 [", problem.num_groups, "]");
  }
  const int64_t needed = GroupedGemmWgradScratchBytes(args, context.executor->num_workers());
  ANABRANCH_RETURN_IF_ERROR(CheckScratch("grouped_gemm_wgrad", context, needed));
  WgradRun(args, problem, context).Run();
  return Status::Ok();
}

}  // namespace anabranch
