// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/wire/wire_rows.h"

#include <algorithm>

#include "ops/quantize/kernels.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

using quantize::kTileColumns;
using quantize::kTileRows;
using quantize::TileRun;

bool IsFloat(DType type) { return type == DType::kF32 || type == DType::kBF16; }

Status Check(const char* op, const char* name, const ConstTensorView& values,
             const ConstTensorView& slots) {
  if (values.rank() == 2 && IsFloat(values.dtype()) && slots.dtype() == DType::kU8 &&
      slots.HasShape({values.size(0), WireBytes(values.size(1))})) {
    return Status::Ok();
  }
  return InvalidArgument(op, ": ", name, " ", values.ToString(), " and slots ", slots.ToString(),
                         "; must be f32 or bf16 [M, H] and u8 [M, H + ceil(H / ", kWireBlock, ")]");
}

// Calls run(first_row, first_column, tile) for every tile of [rows, columns]; the tile's pitches,
// codes and scales are set.
template <typename Run>
void ForEachTile(int64_t rows, int64_t columns, const ConstTensorView& slots, Executor& executor,
                 const Run& run) {
  const int64_t per_stripe = CeilDiv(columns, kTileColumns), pitch = WireBytes(columns);
  executor.ParallelFor(CeilDiv(rows, kTileRows) * per_stripe, [&](int64_t index, int) {
    const int64_t row = index / per_stripe * kTileRows;
    const int64_t column = index % per_stripe * kTileColumns;
    auto* slot = const_cast<uint8_t*>(slots.as<uint8_t>()) + row * pitch;
    TileRun tile;
    tile.rows = std::min(kTileRows, rows - row);
    tile.columns = std::min(kTileColumns, columns - column);
    tile.data = slot + column;
    tile.data_pitch = pitch;
    tile.scale = slot + columns + column / kWireBlock;
    tile.scale_pitch = pitch;
    run(row, column, tile);
  });
}

quantize::BlockPlan Plan() { return quantize::PlanBlocks(QuantizeOptions()); }
const quantize::Kernels& Kernels() { return quantize::FindKernels(tile::Kernels().isa); }

}  // namespace

Status EncodeRows(const EncodeRowsArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Check("encode_rows", "x", args.x, args.slots));
  const quantize::BlockPlan plan = Plan();
  const int64_t columns = args.x.size(1), size = SizeOf(args.x.dtype());
  ForEachTile(args.x.size(0), columns, args.slots, *context.executor,
              [&](int64_t row, int64_t column, TileRun& tile) {
                tile.x = args.x.as<char>() + (row * columns + column) * size;
                tile.x_pitch = columns;
                tile.x_is_bf16 = args.x.dtype() == DType::kBF16;
                Kernels().quantize(plan, tile);
              });
  return Status::Ok();
}

Status DecodeRows(const DecodeRowsArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Check("decode_rows", "rows", args.rows, args.slots));
  if (args.count < 0 || args.count > args.rows.size(0)) {
    return InvalidArgument("decode_rows: count=", args.count, " of ", args.rows.size(0), " rows");
  }
  const quantize::BlockPlan plan = Plan();
  const int64_t columns = args.rows.size(1), size = SizeOf(args.rows.dtype());
  ForEachTile(args.count, columns, args.slots, *context.executor,
              [&](int64_t row, int64_t column, TileRun& tile) {
                tile.out = args.rows.as<char>() + (row * columns + column) * size;
                tile.out_pitch = columns;
                tile.out_is_bf16 = args.rows.dtype() == DType::kBF16;
                Kernels().dequantize(plan, tile);
              });
  return Status::Ok();
}

}  // namespace anabranch
