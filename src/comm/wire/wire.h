// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_WIRE_WIRE_H_
#define ANABRANCH_COMM_WIRE_WIRE_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "comm/expert_parallel/plan.h"

// Rows in the mxfp8 wire format: each token's row is encoded once (EncodeRows of
// ops/quantize/wire/wire_rows.h), Dispatch copies the slots as it copies any rows, and the rank
// that received them decodes.
namespace anabranch::expert_parallel {

// rows[r] = what slots[r] holds, for the rows of the wave that are in use on the plan's rank, in
// the wave's buffer; the padding, which Dispatch zeroed, becomes +0. Rows past them are neither
// read nor written. Numerics, memory and threads as DecodeRows.
//   Errors    kInvalidArgument: no plan, or shapes that do not fit it or each other.
struct DecodeArgs {
  ConstTensorView plan;   // i32 [PlanWords]
  ConstTensorView slots;  // [C, WireBytes(H)] u8, from Dispatch
  TensorView rows;        // [C, H] f32 | bf16
  int64_t wave = 0;
  Waves waves = {};
};
Status Decode(const DecodeArgs& args, const Context& context);

}  // namespace anabranch::expert_parallel

#endif  // ANABRANCH_COMM_WIRE_WIRE_H_
