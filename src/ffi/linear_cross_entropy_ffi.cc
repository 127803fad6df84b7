// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace anabranch::ffi {
namespace {

// Scratch is sized by shapes, before the operation checks them.
template <typename Args>
Status CheckRanks(const Args& args) {
  if (args.x.rank() == 2 && args.w.rank() == 2) return Status::Ok();
  return InvalidArgument("linear_cross_entropy: x is ", args.x.ToString(), " and w ",
                         args.w.ToString(), "; ranks must be 2");
}

Status Forward(xffi::ThreadPool pool, const LinearCrossEntropyArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(CheckRanks(args));
  return RunWithScratch("linear_cross_entropy", pool, args, LinearCrossEntropyScratchBytes,
                        LinearCrossEntropy);
}

Status Backward(xffi::ThreadPool pool, const LinearCrossEntropyGradArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(CheckRanks(args));
  return RunWithScratch("linear_cross_entropy", pool, args, LinearCrossEntropyGradScratchBytes,
                        LinearCrossEntropyGrad);
}

xffi::Error ForwardHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer w,
                           xffi::AnyBuffer labels, xffi::Result<xffi::AnyBuffer> loss,
                           xffi::Result<xffi::AnyBuffer> normaliser, int64_t ignore_index,
                           float z_loss) {
  return ToError(Forward(pool, {.ignore_index = ignore_index,
                                .z_loss = z_loss,
                                .x = View(x),
                                .w = View(w),
                                .labels = View(labels),
                                .loss = View(loss),
                                .normaliser = View(normaliser)}));
}

xffi::Error BackwardHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer w,
                            xffi::AnyBuffer labels, xffi::AnyBuffer normaliser,
                            xffi::AnyBuffer loss_grad, xffi::Result<xffi::AnyBuffer> x_grad,
                            xffi::Result<xffi::AnyBuffer> w_grad, int64_t ignore_index,
                            float z_loss, int64_t num_leaves, int64_t num_ranks) {
  return ToError(Backward(pool, {.ignore_index = ignore_index,
                                 .z_loss = z_loss,
                                 .x = View(x),
                                 .w = View(w),
                                 .labels = View(labels),
                                 .normaliser = View(normaliser),
                                 .loss_grad = View(loss_grad),
                                 .x_grad = View(x_grad),
                                 .w_grad = View(w_grad),
                                 .num_leaves = num_leaves,
                                 .num_ranks = num_ranks}));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_linear_cross_entropy, ForwardHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x [T,H]
                          .Arg<xffi::AnyBuffer>()  // w [H,V]
                          .Arg<xffi::AnyBuffer>()  // labels [T]
                          .Ret<xffi::AnyBuffer>()  // loss [T]
                          .Ret<xffi::AnyBuffer>()  // normaliser [T]
                          .Attr<int64_t>("ignore_index")
                          .Attr<float>("z_loss"));

ANABRANCH_FFI_HANDLER(anabranch_linear_cross_entropy_grad, BackwardHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x [T,H]
                          .Arg<xffi::AnyBuffer>()  // w [H,V]
                          .Arg<xffi::AnyBuffer>()  // labels [T]
                          .Arg<xffi::AnyBuffer>()  // normaliser [T]
                          .Arg<xffi::AnyBuffer>()  // loss_grad [T]
                          .Ret<xffi::AnyBuffer>()  // x_grad [T,H]
                          .Ret<xffi::AnyBuffer>()  // w_grad [H,V]
                          .Attr<int64_t>("ignore_index")
                          .Attr<float>("z_loss")
                          .Attr<int64_t>("num_leaves")
                          .Attr<int64_t>("num_ranks"));

}  // namespace anabranch::ffi
