// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_WIRE_WIRE_ROWS_H_
#define ANABRANCH_OPS_QUANTIZE_WIRE_WIRE_ROWS_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

// Rows as they travel between ranks in half the bytes: MXFP8, a row's scales behind its codes.
//   Slot      WireBytes(H) bytes for a row of H numbers: H codes in E4M3, then ceil(H / 32) scales
//             in E8M0, one for each 32 codes. They are the bytes of Quantize (kMxfp8E4m3, axis 1,
//             kRceil, to nearest), so nothing saturates but infinities.
//   Zeros     a slot of zero bytes is a row of +0.
//   Numerics  decoding multiplies in f32, exactly, and rounds once to the type of rows; bf16 holds
//             every product of at least 2^-133.
//   Empty     no rows, or H = 0, are normal.
//   Memory    allocates nothing, needs no scratch; results overlap nothing.
//   Errors    kInvalidArgument: shapes or types that do not fit. Results are untouched on error.
//   Threads   re-entrant; work is spread over context.executor; bits do not depend on it.
namespace anabranch {

inline constexpr int64_t kWireBlock = 32;

constexpr int64_t WireBytes(int64_t columns) { return columns + CeilDiv(columns, kWireBlock); }

struct EncodeRowsArgs {
  ConstTensorView x;  // [M, H] f32 | bf16
  TensorView slots;   // [M, WireBytes(H)] u8
};
Status EncodeRows(const EncodeRowsArgs& args, const Context& context);

// rows[r] = what slots[r] holds, for r < count; further rows are neither read nor written.
struct DecodeRowsArgs {
  ConstTensorView slots;  // [M, WireBytes(H)] u8
  int64_t count;          // at most M
  TensorView rows;        // [M, H] f32 | bf16
};
Status DecodeRows(const DecodeRowsArgs& args, const Context& context);

// The oracles: Quantize's and Dequantize's own, put together and taken apart.
Status EncodeRowsReference(const EncodeRowsArgs& args);
Status DecodeRowsReference(const DecodeRowsArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_QUANTIZE_WIRE_WIRE_ROWS_H_
