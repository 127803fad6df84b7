// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/attention/attention.h"

namespace anabranch::ffi {
namespace {

// What sizing the scratch reads.
template <typename Args>
Status CheckRanks(const Args& args) {
  if (args.query.rank() == 4 && args.key.rank() == 4 && args.value.rank() == 4) {
    return Status::Ok();
  }
  return InvalidArgument("attention: query is ", args.query.ToString(), ", key ",
                         args.key.ToString(), ", value ", args.value.ToString(),
                         "; each must be [B,S,heads,size]");
}

Status Forward(xffi::ThreadPool pool, const AttentionArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(CheckRanks(args));
  return RunWithScratch("attention", pool, args, AttentionScratchBytes, Attention);
}

Status Backward(xffi::ThreadPool pool, const AttentionGradArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(CheckRanks(args));
  return RunWithScratch("attention", pool, args, AttentionGradScratchBytes, AttentionGrad);
}

xffi::Error AttentionHandler(xffi::ThreadPool pool, xffi::AnyBuffer query, xffi::AnyBuffer key,
                             xffi::AnyBuffer value, xffi::AnyBuffer segment_ids,
                             xffi::Result<xffi::AnyBuffer> output,
                             xffi::Result<xffi::AnyBuffer> log_sum_exp, float scale, bool causal) {
  return ToError(Forward(pool, {.scale = scale,
                                .causal = causal,
                                .query = View(query),
                                .key = View(key),
                                .value = View(value),
                                .segment_ids = View(segment_ids),
                                .output = View(output),
                                .log_sum_exp = View(log_sum_exp)}));
}

xffi::Error AttentionGradHandler(xffi::ThreadPool pool, xffi::AnyBuffer query, xffi::AnyBuffer key,
                                 xffi::AnyBuffer value, xffi::AnyBuffer segment_ids,
                                 xffi::AnyBuffer output, xffi::AnyBuffer log_sum_exp,
                                 xffi::AnyBuffer output_grad,
                                 xffi::Result<xffi::AnyBuffer> query_grad,
                                 xffi::Result<xffi::AnyBuffer> key_grad,
                                 xffi::Result<xffi::AnyBuffer> value_grad, float scale,
                                 bool causal) {
  return ToError(Backward(pool, {.scale = scale,
                                 .causal = causal,
                                 .query = View(query),
                                 .key = View(key),
                                 .value = View(value),
                                 .segment_ids = View(segment_ids),
                                 .output = View(output),
                                 .log_sum_exp = View(log_sum_exp),
                                 .output_grad = View(output_grad),
                                 .query_grad = View(query_grad),
                                 .key_grad = View(key_grad),
                                 .value_grad = View(value_grad)}));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_attention, AttentionHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // query [B,S,N,D]
                          .Arg<xffi::AnyBuffer>()  // key [B,S,M,D]
                          .Arg<xffi::AnyBuffer>()  // value [B,S,M,Dv]
                          .Arg<xffi::AnyBuffer>()  // segment_ids [B,S], or [0]: one segment
                          .Ret<xffi::AnyBuffer>()  // output [B,S,N,Dv]
                          .Ret<xffi::AnyBuffer>()  // log_sum_exp [B,N,S]
                          .Attr<float>("scale")
                          .Attr<bool>("causal"));

ANABRANCH_FFI_HANDLER(anabranch_attention_grad, AttentionGradHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // query [B,S,N,D]
                          .Arg<xffi::AnyBuffer>()  // key [B,S,M,D]
                          .Arg<xffi::AnyBuffer>()  // value [B,S,M,Dv]
                          .Arg<xffi::AnyBuffer>()  // segment_ids [B,S], or [0]: one segment
                          .Arg<xffi::AnyBuffer>()  // output [B,S,N,Dv]
                          .Arg<xffi::AnyBuffer>()  // log_sum_exp [B,N,S]
                          .Arg<xffi::AnyBuffer>()  // output_grad [B,S,N,Dv]
                          .Ret<xffi::AnyBuffer>()  // query_grad [B,S,N,D]
                          .Ret<xffi::AnyBuffer>()  // key_grad [B,S,M,D]
                          .Ret<xffi::AnyBuffer>()  // value_grad [B,S,M,Dv]
                          .Attr<float>("scale")
                          .Attr<bool>("causal"));

}  // namespace anabranch::ffi
