// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Spreads the operations over tiles: which tile lies where, and what it reads and writes.
#include "ops/quantize/quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "ops/quantize/hadamard.h"
#include "ops/quantize/kernels.h"
#include "ops/quantize/layout.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

using quantize::GroupSpan;
using quantize::kTileColumns;
using quantize::kTileRows;
using quantize::TileRun;

// Tiles of all groups, in ascending order of group, row and column.
struct Tiles {
  const GroupSpan* spans;
  int64_t* first_tile;  // [G + 1] first stripe of rows of each group
  int64_t num_groups, columns, per_stripe;

  int64_t count() const { return first_tile[num_groups] * per_stripe; }
};

struct Tile {
  int64_t group, row, column;  // row within the group
};

Tiles MakeTiles(const GroupSpan* spans, int64_t* first_tile, int64_t num_groups, int64_t columns) {
  first_tile[0] = 0;
  for (int64_t group = 0; group < num_groups; ++group) {
    first_tile[group + 1] = first_tile[group] + CeilDiv(spans[group].rows, kTileRows);
  }
  return {spans, first_tile, num_groups, columns, CeilDiv(columns, kTileColumns)};
}

Tile TileAt(const Tiles& tiles, int64_t index) {
  const int64_t stripe = index / tiles.per_stripe;
  const int64_t* first = tiles.first_tile;
  const int64_t* end = first + tiles.num_groups + 1;
  const int64_t group = std::upper_bound(first, end, stripe) - first - 1;
  return {group, (stripe - tiles.first_tile[group]) * kTileRows,
          index % tiles.per_stripe * kTileColumns};
}

const char* At(const ConstTensorView& view, int64_t row, int64_t column) {
  return static_cast<const char*>(view.data()) +
         (row * view.size(1) + column) * SizeOf(view.dtype());
}
char* At(const TensorView& view, int64_t row, int64_t column) {
  return static_cast<char*>(view.data()) + (row * view.size(1) + column) * SizeOf(view.dtype());
}

// What every operation's run has.
TileRun RunOf(const Tiles& tiles, const Tile& tile, const ConstTensorView& x) {
  const GroupSpan& span = tiles.spans[tile.group];
  TileRun run;
  run.rows = std::min(kTileRows, span.rows - tile.row);
  run.columns = std::min(kTileColumns, tiles.columns - tile.column);
  run.x = At(x, span.first_row + tile.row, tile.column);
  run.x_pitch = x.size(1);
  run.x_is_bf16 = x.dtype() == DType::kBF16;
  run.first_row = static_cast<uint32_t>(tile.row);
  run.first_column = static_cast<uint32_t>(tile.column);
  run.group = static_cast<uint32_t>(tile.group);
  return run;
}

void SetCodes(const QuantizeOptions& options, const Tiles& tiles, const Tile& tile,
              const ConstTensorView& data, const ConstTensorView& scale, TileRun* run) {
  const GroupSpan& span = tiles.spans[tile.group];
  run->data = const_cast<uint8_t*>(
      reinterpret_cast<const uint8_t*>(At(data, span.data_row + tile.row, tile.column)));
  run->data_pitch = data.size(1);
  run->scale = const_cast<char*>(At(scale, span.scale_row + tile.row / quantize::BlockRows(options),
                                    tile.column / quantize::BlockColumns(options)));
  run->scale_pitch = scale.size(1);
}

const quantize::Kernels& Kernels() { return quantize::FindKernels(tile::Kernels().isa); }

bool HasTensorScale(const QuantizeOptions& options) {
  return FactsOf(options.format).scale == ScaleKind::kE4m3;
}

// Tiles of the worst case, for scratch: every group ends in a stripe of its own.
int64_t MostTiles(int64_t num_groups, int64_t rows, int64_t columns) {
  return (num_groups + rows / kTileRows) * CeilDiv(columns, kTileColumns);
}

struct Scratch {
  GroupSpan* spans;
  int64_t* first_tile;
  float* encode;      // [G] NVFP4's S
  uint32_t* largest;  // [tiles]
  double* sums;       // [tiles, kQuantizeStatistics]
};

Scratch LayOut(ScratchArena* arena, int64_t num_groups, int64_t num_largest, int64_t num_sums) {
  Scratch scratch;
  scratch.spans = arena->Take<GroupSpan>(num_groups + 1);
  scratch.first_tile = arena->Take<int64_t>(num_groups + 1);
  scratch.encode = arena->Take<float>(num_groups);
  scratch.largest = arena->Take<uint32_t>(num_largest);
  scratch.sums = arena->Take<double>(num_sums * kQuantizeStatistics);
  return scratch;
}

// The scratch of one call that counts num_counted copies; x stands for the matrix in the caller's
// rows.
Scratch Plan(const QuantizeOptions& options, const ConstTensorView& x,
             const ConstTensorView& group_sizes, int64_t num_counted, void* block, int64_t* bytes) {
  const int64_t groups = quantize::NumGroups(group_sizes);
  const int64_t tiles = x.rank() == 2 ? MostTiles(groups, x.size(0), x.size(1)) : 0;
  ScratchArena arena(block);
  const Scratch scratch =
      LayOut(&arena, groups, HasTensorScale(options) ? tiles : 0, num_counted * tiles);
  *bytes = arena.used_bytes();
  return scratch;
}

int64_t ScratchBytes(const QuantizeOptions& options, const ConstTensorView& x,
                     const ConstTensorView& group_sizes, int64_t num_counted) {
  int64_t bytes = 0;
  Plan(options, x, group_sizes, num_counted, nullptr, &bytes);
  return bytes;
}

Status TakeScratch(const char* op, const QuantizeOptions& options, const ConstTensorView& x,
                   const ConstTensorView& group_sizes, int64_t num_counted, const Context& context,
                   Scratch* scratch) {
  int64_t bytes = 0;
  *scratch = Plan(options, x, group_sizes, num_counted, context.scratch, &bytes);
  if (context.scratch_bytes >= bytes) return Status::Ok();
  return MakeStatus(StatusCode::kResourceExhausted, op, ": scratch has ", context.scratch_bytes,
                    " bytes; needs ", bytes);
}

// The scratch and the tiles of rows x as they lie, without padding between groups.
Status TileRows(const char* op, const QuantizeOptions& options, const ConstTensorView& x,
                const ConstTensorView& group_sizes, int64_t num_counted, const Context& context,
                Scratch* scratch, Tiles* tiles) {
  ANABRANCH_RETURN_IF_ERROR(
      TakeScratch(op, options, x, group_sizes, num_counted, context, scratch));
  ANABRANCH_RETURN_IF_ERROR(
      quantize::PlanGroups(op, group_sizes, x.size(0), x.size(0), 1, 1, scratch->spans));
  *tiles =
      MakeTiles(scratch->spans, scratch->first_tile, quantize::NumGroups(group_sizes), x.size(1));
  return Status::Ok();
}

// amax[g] of each group, or of all of x.
void FindAmax(const QuantizeOptions& options, const Tiles& tiles, const ConstTensorView& x,
              const Scratch& scratch, float* amax, const Context& context) {
  const quantize::BlockPlan plan = quantize::PlanBlocks(options);
  context.executor->ParallelFor(tiles.count(), [&](int64_t index, int) {
    scratch.largest[index] = Kernels().largest(plan, RunOf(tiles, TileAt(tiles, index), x));
  });
  const auto largest = [&](int64_t begin, int64_t end) {
    uint32_t most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, scratch.largest[i]);
    return std::bit_cast<float>(most);
  };
  const float all = largest(0, tiles.count());
  for (int64_t group = 0; group < tiles.num_groups; ++group) {
    amax[group] = options.amax_per_group ? largest(tiles.first_tile[group] * tiles.per_stripe,
                                                   tiles.first_tile[group + 1] * tiles.per_stripe)
                                         : all;
  }
}

// encode[g] and tensor_scale[g] from the sizes of x, or from the amax that is given.
void ScaleTensors(const QuantizeOptions& options, const Tiles& tiles, const ConstTensorView& x,
                  const ConstTensorView& given, const Scratch& scratch,
                  const TensorView& tensor_scale, const Context& context) {
  auto* scales = tensor_scale.as<float>();
  std::fill_n(scratch.encode, tiles.num_groups, 1.0f);
  std::fill_n(scales, tiles.num_groups, 1.0f);
  if (!HasTensorScale(options)) return;
  if (!given.has_value()) FindAmax(options, tiles, x, scratch, scratch.encode, context);
  for (int64_t group = 0; group < tiles.num_groups; ++group) {
    const float amax = given.has_value() ? given.as<float>()[group] : scratch.encode[group];
    const float encode = std::min(kNvfp4Range / amax, std::numeric_limits<float>::max());
    scratch.encode[group] = amax == 0 || encode == 0 ? 1.0f : encode;
    scales[group] = 1.0f / scratch.encode[group];
  }
}

void Zero(const TensorView& view, int64_t first_row, int64_t end_row) {
  if (end_row > first_row) {
    std::memset(At(view, first_row, 0), 0,
                (end_row - first_row) * view.size(1) * SizeOf(view.dtype()));
  }
}

// Rows of data and scale that no row of x has.
void ZeroPadding(const QuantizeArgs& args, const GroupSpan* spans, int64_t num_groups,
                 const Context& context) {
  const int64_t block_rows = quantize::BlockRows(args.options);
  // Groups that are not aligned have rows of no one behind the last of them alone.
  const int64_t first = args.options.row_alignment == 1 ? num_groups : 0;
  context.executor->ParallelFor(num_groups + 1 - first, [&](int64_t index, int) {
    const int64_t group = first + index;
    const GroupSpan& span = spans[group];
    const bool last = group == num_groups;
    const int64_t end = last ? args.data.size(0) : spans[group + 1].data_row;
    const int64_t scale_end = last ? args.scale.size(0) : spans[group + 1].scale_row;
    Zero(args.data, span.data_row + span.rows, end);
    Zero(args.scale, span.scale_row + CeilDiv(span.rows, block_rows), scale_end);
  });
}

void AddStatistics(const double* sums, int64_t num_tiles, const TensorView& statistics) {
  for (int64_t i = 0; i < kQuantizeStatistics; ++i) {
    double sum = 0;
    for (int64_t tile = 0; tile < num_tiles; ++tile) sum += sums[tile * kQuantizeStatistics + i];
    statistics.as<float>()[i] = static_cast<float>(sum);
  }
}

}  // namespace

int64_t QuantizeScratchBytes(const QuantizeArgs& args) {
  return ScratchBytes(args.options, args.x, args.group_sizes, args.statistics.has_value());
}

Status Quantize(const QuantizeArgs& args, const Context& context) {
  constexpr const char* kOp = "quantize";
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  const QuantizeOptions& options = args.options;
  const quantize::BlockPlan plan = quantize::PlanBlocks(options);
  const int64_t num_groups = quantize::NumGroups(args.group_sizes);
  const bool counted = args.statistics.has_value();
  Scratch scratch;
  ANABRANCH_RETURN_IF_ERROR(
      TakeScratch(kOp, options, args.x, args.group_sizes, counted, context, &scratch));
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups(kOp, args.group_sizes, args.x.size(0),
                                                 args.data.size(0), options.row_alignment,
                                                 quantize::BlockRows(options), scratch.spans));
  ANABRANCH_RETURN_IF_ERROR(quantize::CheckScaleRows(kOp, args.scale, scratch.spans[num_groups]));
  for (int64_t group = 0; group <= num_groups; ++group) {
    args.group_offsets.as<int32_t>()[group] = static_cast<int32_t>(scratch.spans[group].data_row);
  }
  const Tiles tiles = MakeTiles(scratch.spans, scratch.first_tile, num_groups, args.x.size(1));
  ScaleTensors(options, tiles, args.x, {}, scratch, args.tensor_scale, context);
  ZeroPadding(args, scratch.spans, num_groups, context);
  if (counted) std::fill_n(scratch.sums, tiles.count() * kQuantizeStatistics, 0.0);
  context.executor->ParallelFor(tiles.count(), [&](int64_t index, int) {
    const Tile tile = TileAt(tiles, index);
    TileRun run = RunOf(tiles, tile, args.x);
    run.key = args.key.as<uint32_t>();
    run.encode = scratch.encode[tile.group];
    run.tensor_scale = args.tensor_scale.as<float>()[tile.group];
    run.statistics = counted ? scratch.sums + index * kQuantizeStatistics : nullptr;
    SetCodes(options, tiles, tile, args.data, args.scale, &run);
    Kernels().quantize(plan, run);
  });
  if (counted) AddStatistics(scratch.sums, tiles.count(), args.statistics);
  return Status::Ok();
}

int64_t DequantizeScratchBytes(const DequantizeArgs& args) {
  QuantizeOptions plain;
  return ScratchBytes(plain, args.out, args.group_sizes, 0);
}

Status Dequantize(const DequantizeArgs& args, const Context& context) {
  constexpr const char* kOp = "dequantize";
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  const QuantizeOptions& options = args.options;
  const quantize::BlockPlan plan = quantize::PlanBlocks(options);
  const int64_t num_groups = quantize::NumGroups(args.group_sizes);
  Scratch scratch;
  ANABRANCH_RETURN_IF_ERROR(
      TakeScratch(kOp, QuantizeOptions(), args.out, args.group_sizes, 0, context, &scratch));
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups(kOp, args.group_sizes, args.out.size(0),
                                                 args.data.size(0), options.row_alignment,
                                                 quantize::BlockRows(options), scratch.spans));
  ANABRANCH_RETURN_IF_ERROR(quantize::CheckScaleRows(kOp, args.scale, scratch.spans[num_groups]));
  const Tiles tiles = MakeTiles(scratch.spans, scratch.first_tile, num_groups, args.out.size(1));
  Zero(args.out, scratch.spans[num_groups].first_row, args.out.size(0));
  context.executor->ParallelFor(tiles.count(), [&](int64_t index, int) {
    const Tile tile = TileAt(tiles, index);
    TileRun run = RunOf(tiles, tile, args.out);
    SetCodes(options, tiles, tile, args.data, args.scale, &run);
    run.out = const_cast<void*>(run.x);
    run.out_pitch = run.x_pitch;
    run.out_is_bf16 = run.x_is_bf16;
    run.tensor_scale = args.tensor_scale.as<float>()[tile.group];
    Kernels().dequantize(plan, run);
  });
  return Status::Ok();
}

namespace {

// One copy of a round trip: where its values and its statistics go.
struct Copy {
  quantize::BlockPlan plan;
  TensorView out, statistics;
  double* sums = nullptr;  // [tiles, kQuantizeStatistics], or null
};

void RunCopy(const Copy& copy, const Scratch& scratch, const Tile& tile, int64_t index,
             TileRun run) {
  run.out = At(copy.out, scratch.spans[tile.group].first_row + tile.row, tile.column);
  run.out_pitch = copy.out.size(1);
  run.out_is_bf16 = copy.out.dtype() == DType::kBF16;
  run.statistics = copy.sums == nullptr ? nullptr : copy.sums + index * kQuantizeStatistics;
  Kernels().quantize_dequantize(copy.plan, run);
}

// One copy or two, tile by tile, so that the second one finds x in the caches.
Status RoundTrip(const QuantizeDequantizeArgs& args, Copy* copies, int num_copies,
                 const Context& context) {
  const bool counted = args.statistics.has_value();
  Scratch scratch;
  Tiles tiles;
  ANABRANCH_RETURN_IF_ERROR(TileRows("quantize_dequantize", args.options, args.x, args.group_sizes,
                                     counted ? num_copies : 0, context, &scratch, &tiles));
  ScaleTensors(args.options, tiles, args.x, args.amax, scratch, args.tensor_scale, context);
  const int64_t sums = tiles.count() * kQuantizeStatistics;
  if (counted) std::fill_n(scratch.sums, sums * num_copies, 0.0);
  for (int i = 0; i < num_copies; ++i) {
    Zero(copies[i].out, scratch.spans[tiles.num_groups].first_row, args.x.size(0));
    copies[i].sums = counted ? scratch.sums + i * sums : nullptr;
  }
  context.executor->ParallelFor(tiles.count(), [&](int64_t index, int) {
    const Tile tile = TileAt(tiles, index);
    TileRun run = RunOf(tiles, tile, args.x);
    run.key = args.key.as<uint32_t>();
    run.encode = scratch.encode[tile.group];
    run.tensor_scale = args.tensor_scale.as<float>()[tile.group];
    for (int i = 0; i < num_copies; ++i) RunCopy(copies[i], scratch, tile, index, run);
  });
  for (int i = 0; counted && i < num_copies; ++i) {
    AddStatistics(copies[i].sums, tiles.count(), copies[i].statistics);
  }
  return Status::Ok();
}

}  // namespace

int64_t QuantizeDequantizeScratchBytes(const QuantizeDequantizeArgs& args) {
  return ScratchBytes(args.options, args.x, args.group_sizes, args.statistics.has_value() ? 1 : 0);
}

Status QuantizeDequantize(const QuantizeDequantizeArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  Copy copy = {quantize::PlanBlocks(args.options), args.out, args.statistics};
  return RoundTrip(args, &copy, 1, context);
}

int64_t QuantizeDequantizeBothScratchBytes(const QuantizeDequantizeBothArgs& args) {
  const QuantizeDequantizeArgs& one = args.one;
  return ScratchBytes(one.options, one.x, one.group_sizes, one.statistics.has_value() ? 2 : 0);
}

Status QuantizeDequantizeBoth(const QuantizeDequantizeBothArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  QuantizeOptions other = args.one.options;
  other.axis = 1 - other.axis;
  Copy copies[] = {{quantize::PlanBlocks(args.one.options), args.one.out, args.one.statistics},
                   {quantize::PlanBlocks(other), args.other_out, args.other_statistics}};
  return RoundTrip(args.one, copies, 2, context);
}

namespace {

QuantizeOptions OptionsOf(const TensorAmaxArgs& args) {
  QuantizeOptions options;
  options.format = QuantizedFormat::kNvfp4;  // whatever has a tensor scale
  options.strict = args.options.strict;
  options.amax_per_group = true;
  return options;
}

}  // namespace

int64_t TensorAmaxScratchBytes(const TensorAmaxArgs& args) {
  return ScratchBytes(OptionsOf(args), args.x, args.group_sizes, 0);
}

Status TensorAmax(const TensorAmaxArgs& args, const Context& context) {
  constexpr const char* kOp = "tensor_amax";
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  const QuantizeOptions options = OptionsOf(args);
  Scratch scratch;
  Tiles tiles;
  ANABRANCH_RETURN_IF_ERROR(
      TileRows(kOp, options, args.x, args.group_sizes, 0, context, &scratch, &tiles));
  FindAmax(options, tiles, args.x, scratch, args.amax.as<float>(), context);
  return Status::Ok();
}

int64_t RandomHadamardScratchBytes(const RandomHadamardArgs& args) {
  return ScratchBytes(QuantizeOptions(), args.x, args.group_sizes, 0);
}

Status RandomHadamard(const RandomHadamardArgs& args, const Context& context) {
  constexpr const char* kOp = "random_hadamard";
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  const int64_t num_groups = quantize::NumGroups(args.group_sizes);
  Scratch scratch;
  ANABRANCH_RETURN_IF_ERROR(
      TakeScratch(kOp, QuantizeOptions(), args.x, args.group_sizes, 0, context, &scratch));
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups(kOp, args.group_sizes, args.x.size(0),
                                                 args.out.size(0), args.row_alignment, 1,
                                                 scratch.spans));
  const Tiles tiles = MakeTiles(scratch.spans, scratch.first_tile, num_groups, args.x.size(1));
  context.executor->ParallelFor(num_groups + 1, [&](int64_t group, int) {
    const GroupSpan& span = scratch.spans[group];
    const int64_t end = group == num_groups ? args.out.size(0) : scratch.spans[group + 1].data_row;
    Zero(args.out, span.data_row + RoundUp(span.rows, quantize::kHadamardRows), end);
  });
  context.executor->ParallelFor(tiles.count(), [&](int64_t index, int) {
    const Tile tile = TileAt(tiles, index);
    const TileRun whole = RunOf(tiles, tile, args.x);
    for (int64_t row = 0; row < whole.rows; row += quantize::kHadamardRows) {
      TileRun run = whole;
      run.rows = std::min(quantize::kHadamardRows, whole.rows - row);
      const GroupSpan& span = scratch.spans[tile.group];
      run.x = At(args.x, span.first_row + tile.row + row, tile.column);
      run.out = At(args.out, span.data_row + tile.row + row, tile.column);
      run.out_pitch = args.out.size(1);
      Kernels().hadamard(run);
    }
  });
  return Status::Ok();
}

}  // namespace anabranch
