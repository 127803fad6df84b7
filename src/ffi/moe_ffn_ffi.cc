// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ffi/moe_ffn_run.h"
#include "ops/moe_ffn/moe_ffn.h"

namespace anabranch::ffi {
namespace {

// The two views of panels that may follow the other operands: both or none.
Status TakePanels(const xffi::RemainingArgs& panels, ConstTensorView* first,
                  ConstTensorView* second) {
  if (panels.empty()) return Status::Ok();
  const auto one = panels.get<xffi::AnyBuffer>(0), two = panels.get<xffi::AnyBuffer>(1);
  if (panels.size() != 2 || one.has_error() || two.has_error()) {
    return InvalidArgument("moe_ffn: ", panels.size(), " arrays of panels; must be 0 or 2");
  }
  *first = View(*one);
  *second = View(*two);
  return Status::Ok();
}

xffi::Error MoeFfnHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer weights,
                          xffi::AnyBuffer w_gate, xffi::AnyBuffer w_up, xffi::AnyBuffer w_down,
                          xffi::AnyBuffer group_offsets, xffi::AnyBuffer row_token,
                          xffi::AnyBuffer slot_row, xffi::RemainingArgs panels,
                          xffi::Result<xffi::AnyBuffer> y, xffi::Result<xffi::AnyBuffer> gate_up,
                          int64_t activation) {
  MoeFfnArgs args = {.x = View(x),
                     .weights = View(weights),
                     .w_gate = View(w_gate),
                     .w_up = View(w_up),
                     .w_down = View(w_down),
                     .group_offsets = View(group_offsets),
                     .row_token = View(row_token),
                     .slot_row = View(slot_row),
                     .y = View(y),
                     .gate_up = View(gate_up)};
  const Status status = TakePanels(panels, &args.packed.gate_up, &args.packed.down);
  if (!status.ok()) return ToError(status);
  return ToError(RunMoeFfn(pool, activation, args, MoeFfnScratchBytes, MoeFfn));
}

xffi::Error MoeFfnGradHandler(
    xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer weights, xffi::AnyBuffer w_gate,
    xffi::AnyBuffer w_up, xffi::AnyBuffer w_down, xffi::AnyBuffer group_offsets,
    xffi::AnyBuffer row_token, xffi::AnyBuffer slot_row, xffi::AnyBuffer saved,
    xffi::AnyBuffer y_grad, xffi::RemainingArgs panels, xffi::Result<xffi::AnyBuffer> x_grad,
    xffi::Result<xffi::AnyBuffer> weights_grad, xffi::Result<xffi::AnyBuffer> w_gate_grad,
    xffi::Result<xffi::AnyBuffer> w_up_grad, xffi::Result<xffi::AnyBuffer> w_down_grad,
    xffi::Result<xffi::AnyBuffer> gate_up, int64_t activation) {
  const Status shared = CheckShared("moe_ffn_grad", saved, gate_up);
  if (!shared.ok()) return ToError(shared);
  MoeFfnGradArgs args = {.x = View(x),
                         .weights = View(weights),
                         .w_gate = View(w_gate),
                         .w_up = View(w_up),
                         .w_down = View(w_down),
                         .group_offsets = View(group_offsets),
                         .row_token = View(row_token),
                         .slot_row = View(slot_row),
                         .gate_up = View(gate_up),
                         .y_grad = View(y_grad),
                         .x_grad = View(x_grad),
                         .weights_grad = View(weights_grad),
                         .w_gate_grad = View(w_gate_grad),
                         .w_up_grad = View(w_up_grad),
                         .w_down_grad = View(w_down_grad)};
  const Status status =
      TakePanels(panels, &args.packed.down_transposed, &args.packed.gate_up_transposed);
  if (!status.ok()) return ToError(status);
  return ToError(RunMoeFfn(pool, activation, args, MoeFfnGradScratchBytes, MoeFfnGrad));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_moe_ffn, MoeFfnHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x [T,H]
                          .Arg<xffi::AnyBuffer>()  // weights [T,k]
                          .Arg<xffi::AnyBuffer>()  // w_gate [E,H,F]
                          .Arg<xffi::AnyBuffer>()  // w_up [E,H,F]
                          .Arg<xffi::AnyBuffer>()  // w_down [E,F,H]
                          .Arg<xffi::AnyBuffer>()  // group_offsets [E+1]
                          .Arg<xffi::AnyBuffer>()  // row_token [R]
                          .Arg<xffi::AnyBuffer>()  // slot_row [T,k]
                          .RemainingArgs()         // none, or panels of gate and up, and of down
                          .Ret<xffi::AnyBuffer>()  // y [T,H]
                          .Ret<xffi::AnyBuffer>()  // gate_up [R,2F'], or [0,2F']: not saved
                          .Attr<int64_t>("activation"));

ANABRANCH_FFI_HANDLER(anabranch_moe_ffn_grad, MoeFfnGradHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x [T,H]
                          .Arg<xffi::AnyBuffer>()  // weights [T,k]
                          .Arg<xffi::AnyBuffer>()  // w_gate [E,H,F]
                          .Arg<xffi::AnyBuffer>()  // w_up [E,H,F]
                          .Arg<xffi::AnyBuffer>()  // w_down [E,F,H]
                          .Arg<xffi::AnyBuffer>()  // group_offsets [E+1]
                          .Arg<xffi::AnyBuffer>()  // row_token [R]
                          .Arg<xffi::AnyBuffer>()  // slot_row [T,k]
                          .Arg<xffi::AnyBuffer>()  // gate_up [R,2F'], aliased with the result
                          .Arg<xffi::AnyBuffer>()  // y_grad [T,H]
                          .RemainingArgs()         // none, or both transposed: down, gate and up
                          .Ret<xffi::AnyBuffer>()  // x_grad [T,H]
                          .Ret<xffi::AnyBuffer>()  // weights_grad [T,k]
                          .Ret<xffi::AnyBuffer>()  // w_gate_grad [E,H,F]
                          .Ret<xffi::AnyBuffer>()  // w_up_grad [E,H,F]
                          .Ret<xffi::AnyBuffer>()  // w_down_grad [E,F,H]
                          .Ret<xffi::AnyBuffer>()  // what gate_up's memory holds then
                          .Attr<int64_t>("activation"));

}  // namespace anabranch::ffi
