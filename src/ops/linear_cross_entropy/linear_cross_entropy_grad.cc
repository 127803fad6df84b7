// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
//
// Slab by slab of the vocabulary: the logits of the slab again, turned into their gradients while
// they are in L1 and kept in x's type; from these the slab's share of x_grad, and its columns of
// w_grad. A slab's gradients stay in the third-level cache between the three steps.
#include <algorithm>
#include <cstring>

#include "ops/linear_cross_entropy/labelled.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tile/block.h"
#include "tile/tree_block.h"

namespace anabranch {
namespace {

using linear_cross_entropy::ColumnsAt;
using linear_cross_entropy::Inputs;
using linear_cross_entropy::Labelled;
using linear_cross_entropy::PanelScratch;
using linear_cross_entropy::Sizes;

// Gradients of one slab of logits. A slab narrower than 256 columns would spend its time adding to
// x_grad in memory (8 bytes for 512 operations); one wider than 4,096 gains nothing.
constexpr int64_t kSlabBytes = int64_t{8} << 20;
constexpr int64_t kMinSlabColumns = 256, kMaxSlabColumns = 4096;
// Rows of x that stay in the second-level cache while the panels of a slab pass by.
constexpr int64_t kMaxPartRows = 2048;
// Columns of w_grad for which one worker rearranges x anew: 5 % of their time.
constexpr int64_t kMinBlockColumns = 512;

int64_t SlabColumns(const Sizes& sizes, int64_t num_ranks) {
  const int64_t row_bytes = std::max<int64_t>(sizes.tokens * num_ranks, 1) * sizes.element_bytes();
  const int64_t fitting = kSlabBytes / row_bytes / kMinSlabColumns * kMinSlabColumns;
  return std::min(std::clamp(fitting, kMinSlabColumns, kMaxSlabColumns),
                  RoundUp(sizes.vocabulary, 2));
}

struct Scratch {
  Labelled labelled;
  tile::LossRow* loss_rows;  // [T]
  char* logit_grads;         // [T][grad_pitch]
  int64_t grad_pitch;        // elements
  const void** grad_rows;    // [T]
  float* x_sums;             // [T][sum_pitch], when there are several slabs
  int64_t sum_pitch;
  int64_t slab_columns;
  // One of each for every worker.
  PanelScratch* panel;
  void** block;
  int64_t bytes;
};

// What a call adds to its sizes.
struct Tree {
  int64_t num_leaves, num_ranks;
};
Tree TreeOf(const LinearCrossEntropyGradArgs& args) { return {args.num_leaves, args.num_ranks}; }

int64_t BlockBytes(const Sizes& sizes, int64_t num_leaves) {
  const int64_t columns = std::min(tile::kMaxBlockColumns, sizes.hidden);
  if (num_leaves == 1) {
    return tile::TransposedProductScratchBytes(sizes.type, sizes.tokens, columns);
  }
  return tile::TransposedTreeScratchBytes(sizes.type, sizes.tokens, columns,
                                          static_cast<int>(num_leaves));
}

Scratch LayOut(const Sizes& sizes, Tree tree, int num_workers, void* block) {
  ScratchArena arena(block);
  Scratch s;
  s.slab_columns = SlabColumns(sizes, tree.num_ranks);
  // One cache line more than the columns: rows a power of two apart share few sets of the caches.
  s.grad_pitch = RoundUp(s.slab_columns, 32) + 32;
  s.sum_pitch = RoundUp(sizes.hidden, 16);
  s.labelled = linear_cross_entropy::TakeLabelled(sizes, &arena);
  s.loss_rows = arena.Take<tile::LossRow>(sizes.tokens);
  s.logit_grads = arena.Take<char>(sizes.tokens * s.grad_pitch * sizes.element_bytes());
  s.grad_rows = arena.Take<const void*>(sizes.tokens);
  const bool several = s.slab_columns < sizes.vocabulary;
  s.x_sums = arena.Take<float>(several ? sizes.tokens * s.sum_pitch : 0);
  s.panel = arena.Take<PanelScratch>(num_workers);
  s.block = arena.Take<void*>(num_workers);
  const int64_t words = std::max(sizes.hidden_words(), tile::WordsOf(sizes.type, s.slab_columns));
  for (int worker = 0; worker < num_workers; ++worker) {
    PanelScratch panel;
    panel.panel = arena.Take<uint32_t>(words * tile::kPanelColumns);
    panel.rows = arena.Take<const void*>(std::max<int64_t>(sizes.hidden, tile::kPanelColumns));
    void* block_scratch = arena.Take<char>(BlockBytes(sizes, tree.num_leaves));
    if (block == nullptr) continue;
    s.panel[worker] = panel;
    s.block[worker] = block_scratch;
  }
  s.bytes = arena.used_bytes();
  return s;
}

class GradRun {
 public:
  GradRun(const LinearCrossEntropyGradArgs& args, const Sizes& sizes, const Context& context)
      : args_(args),
        inputs_(linear_cross_entropy::InputsOf(args)),
        sizes_(sizes),
        kernels_(tile::Kernels()),
        executor_(context.executor),
        scratch_(LayOut(sizes, TreeOf(args), context.executor->num_workers(), context.scratch)) {}

  void Run() {
    linear_cross_entropy::FillLabelled(inputs_, sizes_, &scratch_.labelled);
    FillRows();
    FillLeaves();
    ZeroIgnored();
    if (count() == 0) {
      std::memset(args_.w_grad.data(), 0,
                  args_.w_grad.num_elements() * SizeOf(args_.w_grad.dtype()));
      return;
    }
    for (int64_t first = 0; first < sizes_.vocabulary; first += scratch_.slab_columns) {
      const int64_t end = std::min(first + scratch_.slab_columns, sizes_.vocabulary);
      ForLogitGrads(first, end);
      ForInputGrad(first, end);
      ForWeightGrad(first, end);
    }
  }

 private:
  int64_t count() const { return scratch_.labelled.count; }
  char* GradAt(int64_t row, int64_t column) const {
    return scratch_.logit_grads + (row * scratch_.grad_pitch + column) * sizes_.element_bytes();
  }

  void FillRows() {
    for (int64_t i = 0; i < count(); ++i) {
      const int32_t token = scratch_.labelled.token[i];
      const float normaliser = args_.normaliser.as<float>()[token];
      const float cotangent = args_.loss_grad.as<float>()[token];
      const float share = cotangent * (1 + 2 * args_.z_loss * normaliser);
      scratch_.loss_rows[i] = {normaliser, share, cotangent, scratch_.labelled.label[i]};
      scratch_.grad_rows[i] = GradAt(i, 0);
    }
  }

  // Leaves are runs of tokens; what is summed are the labelled ones among them.
  void FillLeaves() {
    const int leaves = static_cast<int>(args_.num_leaves);
    const int32_t* tokens = scratch_.labelled.token;
    for (int i = 0; i <= leaves; ++i) {
      const int64_t first = tile::LeafBegin(sizes_.tokens, leaves, i);
      leaf_begin_[i] = std::lower_bound(tokens, tokens + count(), first) - tokens;
    }
  }

  void ZeroIgnored() {
    const int64_t row_bytes = sizes_.hidden * sizes_.element_bytes();
    int64_t next = 0;  // labelled token that comes next
    for (int64_t t = 0; t < sizes_.tokens; ++t) {
      if (next < count() && scratch_.labelled.token[next] == t) {
        ++next;
      } else {
        std::memset(static_cast<char*>(args_.x_grad.data()) + t * row_bytes, 0, row_bytes);
      }
    }
  }

  // Calls unit(other, begin, end, worker) for `others` things and parts of the labelled tokens.
  template <typename Unit>
  void ForParts(int64_t others, const Unit& unit) {
    const int64_t parts =
        linear_cross_entropy::NumRowParts(count(), others, executor_->num_workers(), kMaxPartRows);
    executor_->ParallelFor(others * parts, [&](int64_t index, int worker) {
      const int64_t part = index / others;
      unit(index % others, count() * part / parts, count() * (part + 1) / parts, worker);
    });
  }

  // Gradients of the logits of columns [first, end), rounded to x's type.
  void ForLogitGrads(int64_t first, int64_t end) {
    const auto grad =
        sizes_.type == DType::kBF16 ? kernels_.loss.grad_bf16 : kernels_.loss.grad_f32;
    ForParts(CeilDiv(end - first, tile::kPanelColumns), [&](int64_t panel, int64_t begin_row,
                                                            int64_t end_row, int worker) {
      const int64_t column = first + panel * tile::kPanelColumns;
      const int columns = ColumnsAt(column, end);
      // An odd last column is followed by the zero that fills its word.
      const int stored = static_cast<int>(RoundUp(columns, 2));
      linear_cross_entropy::PackColumns(inputs_, sizes_, column, columns, scratch_.panel[worker]);
      const tile::PanelPrefetch next = linear_cross_entropy::PrefetchColumns(
          inputs_, sizes_, column + executor_->num_workers() * tile::kPanelColumns, end);
      tile::ForEachRowTile(kernels_.product(sizes_.type), scratch_.labelled.x_rows + begin_row,
                           end_row - begin_row, sizes_.hidden_words(), scratch_.panel[worker].panel,
                           columns, [&](int64_t row, int rows, const float* tile) {
                             void* out[tile::kTileRows];
                             for (int r = 0; r < rows; ++r)
                               out[r] = GradAt(begin_row + row + r, column - first);
                             grad(tile, rows, column, columns, stored,
                                  scratch_.loss_rows + begin_row + row, out);
                             next.Step(row, row + rows, end_row - begin_row);
                           });
    });
  }

  // Adds the slab's share to x_grad: gradients of its logits times rows of w.
  void ForInputGrad(int64_t first, int64_t end) {
    ForParts(CeilDiv(sizes_.hidden, tile::kPanelColumns),
             [&](int64_t panel, int64_t begin_row, int64_t end_row, int worker) {
               AddInputGrad(first, end, panel * tile::kPanelColumns, begin_row, end_row, worker);
             });
  }

  void AddInputGrad(int64_t first, int64_t end, int64_t column, int64_t begin_row, int64_t end_row,
                    int worker) {
    const int columns = ColumnsAt(column, sizes_.hidden);
    const PanelScratch& panel = scratch_.panel[worker];
    const int64_t pitch = sizes_.vocabulary * SizeOf(sizes_.weight_type);
    for (int c = 0; c < columns; ++c) {
      panel.rows[c] = static_cast<const char*>(args_.w.data()) + (column + c) * pitch;
    }
    kernels_.pack(sizes_.weight_type, sizes_.type)
        .transposed(panel.rows, columns, first, end - first, panel.panel);
    const int64_t words = tile::WordsOf(sizes_.type, end - first);
    const tile::ProductFn multiply = kernels_.product(sizes_.type);
    if (end - first == sizes_.vocabulary) {
      tile::ForEachRowTile(multiply, scratch_.grad_rows + begin_row, end_row - begin_row, words,
                           panel.panel, columns, [&](int64_t row, int rows, const float* tile) {
                             StoreInputGrad(begin_row + row, rows, column, columns, tile,
                                            tile::kPanelColumns);
                           });
      return;
    }
    for (int64_t index = 0; index < tile::NumRowTiles(end_row - begin_row); ++index) {
      const tile::RowTile at = tile::RowTileAt(end_row - begin_row, index);
      const int64_t row = begin_row + at.first;
      float* sums = scratch_.x_sums + row * scratch_.sum_pitch + column;
      multiply(scratch_.grad_rows + row, at.rows, words, panel.panel, columns, sums,
               scratch_.sum_pitch, first == 0 ? tile::Store::kWrite : tile::Store::kAccumulate);
      if (end == sizes_.vocabulary) {
        StoreInputGrad(row, at.rows, column, columns, sums, scratch_.sum_pitch);
      }
    }
  }

  // Rounds sums, whose rows lie sums_pitch apart, to x_grad.
  void StoreInputGrad(int64_t row, int rows, int64_t column, int columns, const float* sums,
                      int64_t sums_pitch) {
    for (int r = 0; r < rows; ++r) {
      const int64_t token = scratch_.labelled.token[row + r];
      void* out = static_cast<char*>(args_.x_grad.data()) +
                  (token * sizes_.hidden + column) * sizes_.element_bytes();
      kernels_.epilogue(sizes_.type).store(sums + r * sums_pitch, 1, columns, &out);
    }
  }

  // w_grad's columns [first, end): rows of x against gradients of logits.
  void ForWeightGrad(int64_t first, int64_t end) {
    if (sizes_.hidden == 0) return;
    const int64_t blocks = CeilDiv(sizes_.hidden, tile::kMaxBlockColumns);
    const int64_t wanted = CeilDiv(2 * int64_t{executor_->num_workers()}, blocks);
    const int64_t width = std::max(
        kMinBlockColumns, RoundUp(CeilDiv(end - first, wanted), int64_t{tile::kPanelColumns}));
    const int64_t ranges = CeilDiv(end - first, width);
    executor_->ParallelFor(blocks * ranges, [&](int64_t unit, int worker) {
      const int64_t begin = unit / blocks * width;
      tile::TransposedProduct product;
      product.a_rows = scratch_.labelled.x_rows;
      product.b_rows = scratch_.grad_rows;
      product.num_rows = count();
      product.a_dtype = product.b_dtype = product.dtype = sizes_.type;
      product.first_a = unit % blocks * tile::kMaxBlockColumns;
      product.num_a = std::min(tile::kMaxBlockColumns, sizes_.hidden - product.first_a);
      product.first_b = begin;
      product.num_b = std::min(width, end - first - begin);
      product.out_dtype = args_.w_grad.dtype();
      product.out_pitch = sizes_.vocabulary;
      product.out =
          static_cast<char*>(args_.w_grad.data()) +
          (product.first_a * sizes_.vocabulary + first + begin) * SizeOf(product.out_dtype);
      if (args_.num_leaves == 1) {
        tile::TransposedProductBlock(kernels_, product, scratch_.block[worker]);
      } else {
        const tile::RowLeaves leaves{leaf_begin_, static_cast<int>(args_.num_leaves)};
        tile::TransposedTreeBlock(kernels_, product, leaves, scratch_.block[worker]);
      }
      tile::StreamFence();
    });
  }

  const LinearCrossEntropyGradArgs& args_;
  const Inputs inputs_;
  const Sizes sizes_;
  const tile::KernelTable& kernels_;
  Executor* const executor_;
  Scratch scratch_;
  int64_t leaf_begin_[tile::kMaxLeaves + 1];  // in labelled tokens
};

}  // namespace

int64_t LinearCrossEntropyGradScratchBytes(const LinearCrossEntropyGradArgs& args,
                                           int num_workers) {
  const Sizes sizes = linear_cross_entropy::SizesOf(linear_cross_entropy::InputsOf(args));
  return LayOut(sizes, TreeOf(args), num_workers, nullptr).bytes;
}

Status LinearCrossEntropyGrad(const LinearCrossEntropyGradArgs& args, Context& context) {
  using linear_cross_entropy::CheckView;
  Sizes s;
  ANABRANCH_RETURN_IF_ERROR(
      linear_cross_entropy::Validate(linear_cross_entropy::InputsOf(args), &s));
  ANABRANCH_RETURN_IF_ERROR(CheckView("normaliser", args.normaliser, DType::kF32, {s.tokens}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("loss_grad", args.loss_grad, DType::kF32, {s.tokens}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("x_grad", args.x_grad, s.type, {s.tokens, s.hidden}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("w_grad", args.w_grad, s.weight_type, {s.hidden, s.vocabulary}));
  if (!tile::IsLeafCount(args.num_leaves)) {
    return InvalidArgument("linear_cross_entropy: num_leaves=", args.num_leaves,
                           "; must be a power of two up to ", tile::kMaxLeaves);
  }
  if (args.num_ranks < 1) {
    return InvalidArgument("linear_cross_entropy: num_ranks=", args.num_ranks,
                           "; must be at least 1");
  }
  const int64_t needed = LinearCrossEntropyGradScratchBytes(args, context.executor->num_workers());
  ANABRANCH_RETURN_IF_ERROR(linear_cross_entropy::CheckScratch(context, needed));
  GradRun(args, s, context).Run();
  return Status::Ok();
}

}  // namespace anabranch
