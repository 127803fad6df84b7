// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ffi/moe_ffn_run.h"
#include "ops/expert_rows/expert_rows.h"

namespace anabranch::ffi {
namespace {

template <typename Args>
Status Run(xffi::ThreadPool pool, Status (*run)(const Args&, const Context&), const Args& args) {
  XlaExecutor executor(pool);
  return run(args, {&executor, nullptr, 0});
}

// The same with an activation, which is the first member.
template <typename Args>
xffi::Error RunActivation(const char* op, int64_t activation, xffi::ThreadPool pool,
                          Status (*run)(const Args&, const Context&), Args args) {
  const Status status = ToActivation(op, activation, &args.activation);
  return ToError(status.ok() ? Run(pool, run, args) : status);
}

xffi::Error ActivateRowsHandler(xffi::ThreadPool pool, xffi::AnyBuffer gate, xffi::AnyBuffer up,
                                xffi::Result<xffi::AnyBuffer> hidden, int64_t activation) {
  return RunActivation<ActivateRowsArgs>("activate_rows", activation, pool, ActivateRows,
                                         {{}, View(gate), View(up), View(hidden)});
}

xffi::Error ActivateRowsGradHandler(xffi::ThreadPool pool, xffi::AnyBuffer gate, xffi::AnyBuffer up,
                                    xffi::AnyBuffer hidden_grad,
                                    xffi::Result<xffi::AnyBuffer> gate_grad,
                                    xffi::Result<xffi::AnyBuffer> up_grad, int64_t activation) {
  return RunActivation<ActivateRowsGradArgs>(
      "activate_rows_grad", activation, pool, ActivateRowsGrad,
      {{}, View(gate), View(up), View(hidden_grad), View(gate_grad), View(up_grad)});
}

xffi::Error WeighRowsHandler(xffi::ThreadPool pool, xffi::AnyBuffer weights, xffi::AnyBuffer x,
                             xffi::Result<xffi::AnyBuffer> out) {
  return ToError(Run<WeighRowsArgs>(pool, WeighRows, {View(weights), View(x), View(out)}));
}

xffi::Error WeighRowsGradHandler(xffi::ThreadPool pool, xffi::AnyBuffer weights, xffi::AnyBuffer x,
                                 xffi::AnyBuffer out_grad,
                                 xffi::Result<xffi::AnyBuffer> weights_grad,
                                 xffi::Result<xffi::AnyBuffer> x_grad) {
  return ToError(Run<WeighRowsGradArgs>(
      pool, WeighRowsGrad,
      {View(weights), View(x), View(out_grad), View(weights_grad), View(x_grad)}));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_activate_rows, ActivateRowsHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // gate
                          .Arg<xffi::AnyBuffer>()  // up
                          .Ret<xffi::AnyBuffer>()  // hidden
                          .Attr<int64_t>("activation"));

ANABRANCH_FFI_HANDLER(anabranch_activate_rows_grad, ActivateRowsGradHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // gate
                          .Arg<xffi::AnyBuffer>()  // up
                          .Arg<xffi::AnyBuffer>()  // hidden_grad
                          .Ret<xffi::AnyBuffer>()  // gate_grad
                          .Ret<xffi::AnyBuffer>()  // up_grad
                          .Attr<int64_t>("activation"));

ANABRANCH_FFI_HANDLER(anabranch_weigh_rows, WeighRowsHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // weights
                          .Arg<xffi::AnyBuffer>()    // x
                          .Ret<xffi::AnyBuffer>());  // out

ANABRANCH_FFI_HANDLER(anabranch_weigh_rows_grad, WeighRowsGradHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // weights
                          .Arg<xffi::AnyBuffer>()    // x
                          .Arg<xffi::AnyBuffer>()    // out_grad
                          .Ret<xffi::AnyBuffer>()    // weights_grad
                          .Ret<xffi::AnyBuffer>());  // x_grad

}  // namespace anabranch::ffi
