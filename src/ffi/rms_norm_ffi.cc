// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/rms_norm/rms_norm.h"

namespace anabranch::ffi {
namespace {

xffi::Error Forward(xffi::ThreadPool pool, const RmsNormArgs& args) {
  XlaExecutor executor(pool);
  Context context{&executor, nullptr, 0};
  return ToError(RmsNorm(args, context));
}

Status Backward(xffi::ThreadPool pool, const RmsNormGradArgs& args) {
  return RunWithScratch("rms_norm_grad", pool, args, RmsNormGradScratchBytes, RmsNormGrad);
}

xffi::Error RmsNormHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer weight,
                           xffi::Result<xffi::AnyBuffer> y, xffi::Result<xffi::AnyBuffer> inverse,
                           float epsilon) {
  return Forward(pool, {epsilon, View(x), {}, View(weight), {}, View(y), View(inverse)});
}

xffi::Error AddRmsNormHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer branch,
                              xffi::AnyBuffer weight, xffi::Result<xffi::AnyBuffer> sum,
                              xffi::Result<xffi::AnyBuffer> y,
                              xffi::Result<xffi::AnyBuffer> inverse, float epsilon) {
  return Forward(pool,
                 {epsilon, View(x), View(branch), View(weight), View(sum), View(y), View(inverse)});
}

xffi::Error RmsNormGradHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer weight,
                               xffi::AnyBuffer inverse, xffi::AnyBuffer y_grad,
                               xffi::Result<xffi::AnyBuffer> x_grad,
                               xffi::Result<xffi::AnyBuffer> weight_grad, int64_t num_leaves) {
  return ToError(Backward(pool, {View(x),
                                 View(weight),
                                 View(inverse),
                                 View(y_grad),
                                 {},
                                 View(x_grad),
                                 {},
                                 View(weight_grad),
                                 num_leaves}));
}

xffi::Error AddRmsNormGradHandler(xffi::ThreadPool pool, xffi::AnyBuffer sum,
                                  xffi::AnyBuffer weight, xffi::AnyBuffer inverse,
                                  xffi::AnyBuffer y_grad, xffi::AnyBuffer sum_grad,
                                  xffi::Result<xffi::AnyBuffer> x_grad,
                                  xffi::Result<xffi::AnyBuffer> branch_grad,
                                  xffi::Result<xffi::AnyBuffer> weight_grad, int64_t num_leaves) {
  return ToError(
      Backward(pool, {View(sum), View(weight), View(inverse), View(y_grad), View(sum_grad),
                      View(x_grad), View(branch_grad), View(weight_grad), num_leaves}));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_rms_norm, RmsNormHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x [T,H]
                          .Arg<xffi::AnyBuffer>()  // weight [H]
                          .Ret<xffi::AnyBuffer>()  // y [T,H]
                          .Ret<xffi::AnyBuffer>()  // inverse [T]
                          .Attr<float>("epsilon"));

ANABRANCH_FFI_HANDLER(anabranch_add_rms_norm, AddRmsNormHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x [T,H]
                          .Arg<xffi::AnyBuffer>()  // branch [T,H]
                          .Arg<xffi::AnyBuffer>()  // weight [H]
                          .Ret<xffi::AnyBuffer>()  // sum [T,H]
                          .Ret<xffi::AnyBuffer>()  // y [T,H]
                          .Ret<xffi::AnyBuffer>()  // inverse [T]
                          .Attr<float>("epsilon"));

ANABRANCH_FFI_HANDLER(anabranch_rms_norm_grad, RmsNormGradHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x [T,H]
                          .Arg<xffi::AnyBuffer>()  // weight [H]
                          .Arg<xffi::AnyBuffer>()  // inverse [T]
                          .Arg<xffi::AnyBuffer>()  // y_grad [T,H]
                          .Ret<xffi::AnyBuffer>()  // x_grad [T,H]
                          .Ret<xffi::AnyBuffer>()  // weight_grad [H]
                          .Attr<int64_t>("num_leaves"));

ANABRANCH_FFI_HANDLER(anabranch_add_rms_norm_grad, AddRmsNormGradHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // sum [T,H]
                          .Arg<xffi::AnyBuffer>()  // weight [H]
                          .Arg<xffi::AnyBuffer>()  // inverse [T]
                          .Arg<xffi::AnyBuffer>()  // y_grad [T,H]
                          .Arg<xffi::AnyBuffer>()  // sum_grad [T,H]
                          .Ret<xffi::AnyBuffer>()  // x_grad [T,H]
                          .Ret<xffi::AnyBuffer>()  // branch_grad [T,H]
                          .Ret<xffi::AnyBuffer>()  // weight_grad [H]
                          .Attr<int64_t>("num_leaves"));

}  // namespace anabranch::ffi
