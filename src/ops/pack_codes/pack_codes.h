// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_PACK_CODES_PACK_CODES_H_
#define ANABRANCH_OPS_PACK_CODES_PACK_CODES_H_

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

// Codes of four bits as XLA keeps arrays of four-bit elements: two in a byte, the earlier one in
// the low half, rows without a gap; the last half of an odd number is 0. XLA's own conversion from
// bytes takes one element after the other.
//   Empty     no elements are normal.
//   Memory    results must not overlap arguments; no scratch, no allocation.
//   Errors    kInvalidArgument: types or sizes that do not fit. Results are untouched on error.
//   Threads   re-entrant; work is spread over context.executor; bits do not depend on it.
namespace anabranch {

struct PackCodesArgs {
  ConstTensorView codes;  // u8, n elements in any shape, each below 16
  TensorView packed;      // [ceil(n / 2)] u8
};
Status PackCodes(const PackCodesArgs& args, const Context& context);

struct UnpackCodesArgs {
  ConstTensorView packed;  // [ceil(n / 2)] u8
  TensorView codes;        // u8, n elements in any shape
};
Status UnpackCodes(const UnpackCodesArgs& args, const Context& context);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_PACK_CODES_PACK_CODES_H_
