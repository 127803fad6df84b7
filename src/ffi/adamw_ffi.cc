// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/adamw/adamw.h"

namespace anabranch::ffi {
namespace {

xffi::Error AdamwHandler(xffi::ThreadPool pool, xffi::AnyBuffer scalars, xffi::AnyBuffer gradient,
                         xffi::AnyBuffer parameter, xffi::AnyBuffer m, xffi::AnyBuffer v,
                         xffi::Result<xffi::AnyBuffer> new_parameter,
                         xffi::Result<xffi::AnyBuffer> new_m, xffi::Result<xffi::AnyBuffer> new_v,
                         bool emit_update) {
  XlaExecutor executor(pool);
  Context context{&executor, nullptr, 0};
  return ToError(Adamw({.emit_update = emit_update,
                        .scalars = View(scalars),
                        .gradient = View(gradient),
                        .parameter = View(parameter),
                        .m = View(m),
                        .v = View(v),
                        .new_parameter = View(new_parameter),
                        .new_m = View(new_m),
                        .new_v = View(new_v)},
                       context));
}

xffi::Error SumOfSquaresHandler(xffi::ThreadPool pool, xffi::AnyBuffer values,
                                xffi::Result<xffi::AnyBuffer> sum) {
  const SumOfSquaresArgs args{View(values), View(sum)};
  return ToError(
      RunWithScratch("sum_of_squares", pool, args, SumOfSquaresScratchBytes, SumOfSquares));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_adamw, AdamwHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // scalars [11]
                          .Arg<xffi::AnyBuffer>()  // gradient
                          .Arg<xffi::AnyBuffer>()  // parameter
                          .Arg<xffi::AnyBuffer>()  // m
                          .Arg<xffi::AnyBuffer>()  // v
                          .Ret<xffi::AnyBuffer>()  // new parameter, or update
                          .Ret<xffi::AnyBuffer>()  // new m
                          .Ret<xffi::AnyBuffer>()  // new v
                          .Attr<bool>("emit_update"));

ANABRANCH_FFI_HANDLER(anabranch_sum_of_squares, SumOfSquaresHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // values
                          .Ret<xffi::AnyBuffer>());  // sum, a scalar

}  // namespace anabranch::ffi
