// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "ops/quantize/quantize.h"
#include "ops/quantize/wire/wire_rows.h"

namespace anabranch {
namespace {

// Codes and scales of a matrix apart, as Quantize has them.
struct Apart {
  Apart(int64_t num_rows, int64_t num_columns)
      : rows(num_rows),
        columns(num_columns),
        blocks(CeilDiv(num_columns, kWireBlock)),
        codes(num_rows * num_columns),
        scales(num_rows * blocks) {}

  TensorView Codes() { return TensorView(codes.data(), DType::kE4M3, {rows, columns}); }
  TensorView Scales() { return TensorView(scales.data(), DType::kE8M0, {rows, blocks}); }

  int64_t rows, columns, blocks;
  std::vector<uint8_t> codes, scales;
  float tensor_scale = 1;
  int32_t key[4] = {}, offsets[2] = {};
};

}  // namespace

Status EncodeRowsReference(const EncodeRowsArgs& args) {
  Apart apart(args.x.size(0), args.x.size(1));
  const QuantizeArgs quantize = {QuantizeOptions(),
                                 args.x,
                                 ConstTensorView(),
                                 ConstTensorView(apart.key, {4}),
                                 apart.Codes(),
                                 apart.Scales(),
                                 TensorView(&apart.tensor_scale, {1}),
                                 TensorView(apart.offsets, {2})};
  ANABRANCH_RETURN_IF_ERROR(QuantizeReference(quantize));
  for (int64_t row = 0; row < apart.rows; ++row) {
    auto* slot = args.slots.as<uint8_t>() + row * WireBytes(apart.columns);
    for (int64_t i = 0; i < apart.columns; ++i) slot[i] = apart.codes[row * apart.columns + i];
    for (int64_t i = 0; i < apart.blocks; ++i) {
      slot[apart.columns + i] = apart.scales[row * apart.blocks + i];
    }
  }
  return Status::Ok();
}

Status DecodeRowsReference(const DecodeRowsArgs& args) {
  Apart apart(args.count, args.rows.size(1));
  for (int64_t row = 0; row < apart.rows; ++row) {
    const auto* slot = args.slots.as<uint8_t>() + row * WireBytes(apart.columns);
    for (int64_t i = 0; i < apart.columns; ++i) apart.codes[row * apart.columns + i] = slot[i];
    for (int64_t i = 0; i < apart.blocks; ++i) {
      apart.scales[row * apart.blocks + i] = slot[apart.columns + i];
    }
  }
  const TensorView used(args.rows.data(), args.rows.dtype(), {args.count, apart.columns});
  return DequantizeReference({QuantizeOptions(), apart.Codes(), apart.Scales(),
                              TensorView(&apart.tensor_scale, {1}), ConstTensorView(), used});
}

}  // namespace anabranch
