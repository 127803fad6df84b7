// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/pack_experts/pack_experts.h"

namespace anabranch::ffi {
namespace {

Status Pack(xffi::ThreadPool pool, const PackExpertsArgs& args) {
  if (args.w_gate.rank() != 3) {
    return InvalidArgument("pack_experts: w_gate is ", args.w_gate.ToString(), "; rank must be 3");
  }
  return RunWithScratch("pack_experts", pool, args, PackExpertsScratchBytes, PackExperts);
}

xffi::Error PackExpertsHandler(xffi::ThreadPool pool, xffi::AnyBuffer w_gate, xffi::AnyBuffer w_up,
                               xffi::AnyBuffer w_down, xffi::Result<xffi::AnyBuffer> gate_up,
                               xffi::Result<xffi::AnyBuffer> down,
                               xffi::Result<xffi::AnyBuffer> down_transposed,
                               xffi::Result<xffi::AnyBuffer> gate_up_transposed) {
  return ToError(Pack(pool, {.w_gate = View(w_gate),
                             .w_up = View(w_up),
                             .w_down = View(w_down),
                             .packed = {.gate_up = View(gate_up),
                                        .down = View(down),
                                        .down_transposed = View(down_transposed),
                                        .gate_up_transposed = View(gate_up_transposed)}}));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_pack_experts, PackExpertsHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // w_gate [E,H,F]
                          .Arg<xffi::AnyBuffer>()    // w_up [E,H,F]
                          .Arg<xffi::AnyBuffer>()    // w_down [E,F,H]
                          .Ret<xffi::AnyBuffer>()    // gate_up
                          .Ret<xffi::AnyBuffer>()    // down
                          .Ret<xffi::AnyBuffer>()    // down_transposed
                          .Ret<xffi::AnyBuffer>());  // gate_up_transposed

}  // namespace anabranch::ffi
