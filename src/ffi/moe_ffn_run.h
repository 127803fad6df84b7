// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_FFI_MOE_FFN_RUN_H_
#define ANABRANCH_FFI_MOE_FFN_RUN_H_

#include "ffi/ffi_support.h"
#include "ops/moe_ffn/moe_ffn.h"

namespace anabranch::ffi {

inline Status ToActivation(int64_t code, tile::Activation* activation) {
  if (code < 0 || code > static_cast<int64_t>(tile::Activation::kClampedSwiglu)) {
    return InvalidArgument("moe_ffn: activation=", code, "; must be in [0, 3]");
  }
  *activation = static_cast<tile::Activation>(code);
  return Status::Ok();
}

// What all handlers share: the activation, the ranks that sizing relies on, and the scratch.
template <typename Args>
Status RunMoeFfn(xffi::ThreadPool pool, int64_t activation, Args args,
                 int64_t (*scratch_bytes)(const Args&, int), Status (*run)(const Args&, Context&)) {
  ANABRANCH_RETURN_IF_ERROR(ToActivation(activation, &args.activation));
  if (args.x.rank() != 2 || args.w_gate.rank() != 3 || args.slot_row.rank() != 2) {
    return InvalidArgument("moe_ffn: x is ", args.x.ToString(), ", w_gate ", args.w_gate.ToString(),
                           ", slot_row ", args.slot_row.ToString(), "; ranks must be 2, 3, 2");
  }
  XlaExecutor executor(pool);
  const ScratchBlock scratch(scratch_bytes(args, executor.num_workers()));
  ANABRANCH_RETURN_IF_ERROR(scratch.status("moe_ffn"));
  Context context = scratch.context(&executor);
  return run(args, context);
}

}  // namespace anabranch::ffi

#endif  // ANABRANCH_FFI_MOE_FFN_RUN_H_
