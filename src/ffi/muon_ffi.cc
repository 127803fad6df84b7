// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/muon/muon.h"

namespace anabranch::ffi {
namespace {

xffi::Error MuonHandler(xffi::ThreadPool pool, xffi::AnyBuffer scalars, xffi::AnyBuffer gradient,
                        xffi::AnyBuffer parameter, xffi::AnyBuffer m,
                        xffi::Result<xffi::AnyBuffer> new_parameter,
                        xffi::Result<xffi::AnyBuffer> new_m, bool emit_update, int64_t iterations) {
  const MuonArgs args{.emit_update = emit_update,
                      .iterations = iterations,
                      .scalars = View(scalars),
                      .gradient = View(gradient),
                      .parameter = View(parameter),
                      .m = View(m),
                      .new_parameter = View(new_parameter),
                      .new_m = View(new_m)};
  return ToError(RunWithScratch("muon", pool, args, MuonScratchBytes, Muon));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_muon, MuonHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // scalars [7]
                          .Arg<xffi::AnyBuffer>()  // gradient [E,M,N]
                          .Arg<xffi::AnyBuffer>()  // parameter [E,M,N]
                          .Arg<xffi::AnyBuffer>()  // m [E,M,N]
                          .Ret<xffi::AnyBuffer>()  // new parameter, or update
                          .Ret<xffi::AnyBuffer>()  // new m
                          .Attr<bool>("emit_update")
                          .Attr<int64_t>("iterations"));

}  // namespace anabranch::ffi
