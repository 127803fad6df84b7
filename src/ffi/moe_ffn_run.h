// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_FFI_MOE_FFN_RUN_H_
#define ANABRANCH_FFI_MOE_FFN_RUN_H_

#include "ffi/ffi_support.h"
#include "ops/moe_ffn/moe_ffn.h"

namespace anabranch::ffi {

inline Status ToActivation(const char* op, int64_t code, tile::Activation* activation) {
  if (code < 0 || code > static_cast<int64_t>(tile::Activation::kClampedSwiglu)) {
    return InvalidArgument(op, ": activation=", code, "; must be in [0, 3]");
  }
  *activation = static_cast<tile::Activation>(code);
  return Status::Ok();
}

// The gradient works in the memory of what the forward pass saved.
inline Status CheckShared(const char* op, const xffi::AnyBuffer& saved,
                          xffi::Result<xffi::AnyBuffer>& result) {
  if (saved.element_count() == 0 || saved.untyped_data() == result->untyped_data()) {
    return Status::Ok();
  }
  return InvalidArgument(op, ": gate_up is not aliased with the last result");
}

// What the handlers with routed tokens share: the activation, the ranks, and the scratch.
template <typename Args>
Status RunMoeFfn(xffi::ThreadPool pool, int64_t activation, Args args,
                 int64_t (*scratch_bytes)(const Args&, int), Status (*run)(const Args&, Context&)) {
  ANABRANCH_RETURN_IF_ERROR(ToActivation("moe_ffn", activation, &args.activation));
  if (args.x.rank() != 2 || args.w_gate.rank() != 3 || args.slot_row.rank() != 2) {
    return InvalidArgument("moe_ffn: x is ", args.x.ToString(), ", w_gate ", args.w_gate.ToString(),
                           ", slot_row ", args.slot_row.ToString(), "; ranks must be 2, 3, 2");
  }
  return RunWithScratch("moe_ffn", pool, args, scratch_bytes, run);
}

}  // namespace anabranch::ffi

#endif  // ANABRANCH_FFI_MOE_FFN_RUN_H_
