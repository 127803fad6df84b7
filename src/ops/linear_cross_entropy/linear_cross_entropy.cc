// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
//
// A unit of work is a slab of columns for a part of the tokens: each panel of the slab is packed
// and multiplied, and every tile of logits is folded into the rows' log-sum-exp while it is in L1.
// What leaves a unit is one maximum and one sum a row; a last pass combines the slabs in order.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "ops/linear_cross_entropy/labelled.h"
#include "tile/block.h"

namespace anabranch {
namespace {

using linear_cross_entropy::Inputs;
using linear_cross_entropy::Labelled;
using linear_cross_entropy::PanelScratch;
using linear_cross_entropy::Sizes;

// The states of a part's rows, 128 bytes each, stay in the second-level cache.
constexpr int64_t kMaxPartRows = 1024;
constexpr int64_t kFinishRows = 256;

struct Scratch {
  Labelled labelled;
  float* picked;  // [T] the label's logit
  float* maxima;  // [slabs][T]
  float* sums;    // [slabs][T]
  // One of each for every worker.
  float** states;  // [kMaxPartRows][kLossStateFloats]
  PanelScratch* panel;
  int64_t bytes;
};

int64_t NumSlabs(const Sizes& sizes) { return CeilDiv(sizes.vocabulary, kLossSlabColumns); }

Scratch LayOut(const Sizes& sizes, int num_workers, void* block) {
  ScratchArena arena(block);
  Scratch s;
  s.labelled = linear_cross_entropy::TakeLabelled(sizes, &arena);
  s.picked = arena.Take<float>(sizes.tokens);
  s.maxima = arena.Take<float>(NumSlabs(sizes) * sizes.tokens);
  s.sums = arena.Take<float>(NumSlabs(sizes) * sizes.tokens);
  s.states = arena.Take<float*>(num_workers);
  s.panel = arena.Take<PanelScratch>(num_workers);
  for (int worker = 0; worker < num_workers; ++worker) {
    float* states =
        arena.Take<float>(std::min(sizes.tokens, kMaxPartRows) * tile::kLossStateFloats);
    PanelScratch panel;
    panel.panel = arena.Take<uint32_t>(sizes.hidden_words() * tile::kPanelColumns);
    panel.rows = arena.Take<const void*>(sizes.hidden);
    if (block == nullptr) continue;
    s.states[worker] = states;
    s.panel[worker] = panel;
  }
  s.bytes = arena.used_bytes();
  return s;
}

void ClearStates(int64_t rows, float* states) {
  for (int64_t r = 0; r < rows; ++r, states += tile::kLossStateFloats) {
    std::fill_n(states, tile::kLossLanes, tile::kLossFloor);
    std::fill_n(states + tile::kLossLanes, tile::kLossLanes, 0.0f);
  }
}

// One slab for the labelled tokens [begin, end).
void FoldSlab(const Inputs& inputs, const Sizes& sizes, const Scratch& scratch, int64_t slab,
              int64_t begin, int64_t end, int worker) {
  const tile::KernelTable& kernels = tile::Kernels();
  const Labelled& labelled = scratch.labelled;
  float* states = scratch.states[worker];
  ClearStates(end - begin, states);
  const int64_t first = slab * kLossSlabColumns;
  const int64_t last = std::min(first + kLossSlabColumns, sizes.vocabulary);
  for (int64_t column = first; column < last; column += tile::kPanelColumns) {
    const int columns = linear_cross_entropy::ColumnsAt(column, last);
    linear_cross_entropy::PackColumns(inputs, sizes, column, columns, scratch.panel[worker]);
    const tile::PanelPrefetch next =
        linear_cross_entropy::PrefetchColumns(inputs, sizes, column + tile::kPanelColumns, last);
    tile::ForEachRowTile(
        kernels.product(sizes.type), labelled.x_rows + begin, end - begin, sizes.hidden_words(),
        scratch.panel[worker].panel, columns, [&](int64_t row, int rows, const float* tile) {
          kernels.loss.fold(tile, rows, columns, states + row * tile::kLossStateFloats);
          for (int r = 0; r < rows; ++r) {
            const int64_t at = labelled.label[begin + row + r] - column;
            if (at < 0 || at >= columns) continue;
            scratch.picked[begin + row + r] = tile[r * tile::kPanelColumns + at];
          }
          next.Step(row, row + rows, end - begin);
        });
  }
  const int64_t at = slab * sizes.tokens + begin;
  kernels.loss.reduce(states, end - begin, scratch.maxima + at, scratch.sums + at);
}

// Combines the slabs of labelled token i, ascending.
void Finish(const LinearCrossEntropyArgs& args, const Sizes& sizes, const Scratch& scratch,
            int64_t i) {
  const int64_t slabs = NumSlabs(sizes);
  float top = tile::kLossFloor, sum = 0;
  for (int64_t s = 0; s < slabs; ++s) top = std::max(top, scratch.maxima[s * sizes.tokens + i]);
  for (int64_t s = 0; s < slabs; ++s) {
    const int64_t at = s * sizes.tokens + i;
    sum += scratch.sums[at] * std::exp(scratch.maxima[at] - top);
  }
  const float normaliser = top + std::log(sum);
  const int32_t token = scratch.labelled.token[i];
  args.normaliser.as<float>()[token] = normaliser;
  args.loss.as<float>()[token] =
      normaliser - scratch.picked[i] + args.z_loss * normaliser * normaliser;
}

}  // namespace

int64_t LinearCrossEntropyScratchBytes(const LinearCrossEntropyArgs& args, int num_workers) {
  return LayOut(linear_cross_entropy::SizesOf(linear_cross_entropy::InputsOf(args)), num_workers,
                nullptr)
      .bytes;
}

Status LinearCrossEntropy(const LinearCrossEntropyArgs& args, Context& context) {
  using linear_cross_entropy::CheckView;
  const Inputs inputs = linear_cross_entropy::InputsOf(args);
  Sizes sizes;
  ANABRANCH_RETURN_IF_ERROR(linear_cross_entropy::Validate(inputs, &sizes));
  ANABRANCH_RETURN_IF_ERROR(CheckView("loss", args.loss, DType::kF32, {sizes.tokens}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("normaliser", args.normaliser, DType::kF32, {sizes.tokens}));
  Executor* executor = context.executor;
  Scratch scratch = LayOut(sizes, executor->num_workers(), context.scratch);
  ANABRANCH_RETURN_IF_ERROR(linear_cross_entropy::CheckScratch(context, scratch.bytes));
  linear_cross_entropy::FillLabelled(inputs, sizes, &scratch.labelled);

  std::fill_n(args.loss.as<float>(), sizes.tokens, 0.0f);
  std::fill_n(args.normaliser.as<float>(), sizes.tokens, 0.0f);
  const int64_t count = scratch.labelled.count;
  if (count == 0) return Status::Ok();
  const int64_t slabs = NumSlabs(sizes);
  const int64_t parts =
      linear_cross_entropy::NumRowParts(count, slabs, executor->num_workers(), kMaxPartRows);
  executor->ParallelFor(slabs * parts, [&](int64_t unit, int worker) {
    const int64_t part = unit % parts;
    FoldSlab(inputs, sizes, scratch, unit / parts, count * part / parts, count * (part + 1) / parts,
             worker);
  });
  executor->ParallelFor(CeilDiv(count, kFinishRows), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * kFinishRows, count);
    for (int64_t i = unit * kFinishRows; i < end; ++i) Finish(args, sizes, scratch, i);
  });
  return Status::Ok();
}

}  // namespace anabranch
