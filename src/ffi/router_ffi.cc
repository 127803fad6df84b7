// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/router/router.h"

namespace anabranch::ffi {
namespace {

// The attributes of both handlers, as the binding below decodes them.
struct RouterAttributes {
  std::string_view score_function;
  int64_t topk;
  int64_t num_groups;
  int64_t group_topk;
  int64_t group_score;
  bool normalize;
  float scaling_factor;
};

// Fills in args.options and the scratch, then runs the operation.
template <typename Args>
Status Run(Status (*run)(const Args&, Context&), xffi::ThreadPool pool,
           const RouterAttributes& attributes, Args args) {
  RouterOptions& options = args.options;
  ANABRANCH_RETURN_IF_ERROR(ParseScoreFunction(attributes.score_function, &options.score_function));
  options.topk = attributes.topk;
  options.num_groups = attributes.num_groups;
  options.group_topk = attributes.group_topk;
  options.group_score = attributes.group_score;
  options.normalize = attributes.normalize;
  options.scaling_factor = attributes.scaling_factor;
  const int64_t num_experts = args.logits.rank() == 2 ? args.logits.size(1) : 0;
  const auto scratch_bytes = [num_experts](const Args&, int workers) {
    return RouterScratchBytes(num_experts, workers);
  };
  return RunWithScratch("router", pool, args, scratch_bytes, run);
}

xffi::Error RouterHandler(xffi::ThreadPool pool, RouterAttributes attributes,
                          xffi::AnyBuffer logits, xffi::AnyBuffer expert_bias,
                          xffi::Result<xffi::AnyBuffer> experts,
                          xffi::Result<xffi::AnyBuffer> weights,
                          xffi::Result<xffi::AnyBuffer> scores) {
  const RouterArgs args{View(logits),  View(expert_bias), View(experts),
                        View(weights), View(scores),      {}};
  return ToError(Run(Router, pool, attributes, args));
}

xffi::Error RouterGradHandler(xffi::ThreadPool pool, RouterAttributes attributes,
                              xffi::AnyBuffer logits, xffi::AnyBuffer experts,
                              xffi::AnyBuffer d_weights, xffi::AnyBuffer d_scores,
                              xffi::Result<xffi::AnyBuffer> d_logits) {
  const RouterGradArgs args{View(logits),   View(experts),  View(d_weights),
                            View(d_scores), View(d_logits), {}};
  return ToError(Run(RouterGrad, pool, attributes, args));
}

}  // namespace
}  // namespace anabranch::ffi

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(anabranch::ffi::RouterAttributes,
                                      ::xla::ffi::StructMember<std::string_view>("score_function"),
                                      ::xla::ffi::StructMember<int64_t>("topk"),
                                      ::xla::ffi::StructMember<int64_t>("num_groups"),
                                      ::xla::ffi::StructMember<int64_t>("group_topk"),
                                      ::xla::ffi::StructMember<int64_t>("group_score"),
                                      ::xla::ffi::StructMember<bool>("normalize"),
                                      ::xla::ffi::StructMember<float>("scaling_factor"));

namespace anabranch::ffi {
namespace {

auto RouterBinding() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::ThreadPool>()
      .Attrs<RouterAttributes>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Ret<xffi::AnyBuffer>()
      .Ret<xffi::AnyBuffer>()
      .Ret<xffi::AnyBuffer>();
}

auto RouterGradBinding() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::ThreadPool>()
      .Attrs<RouterAttributes>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Ret<xffi::AnyBuffer>();
}

}  // namespace
}  // namespace anabranch::ffi

ANABRANCH_FFI_HANDLER(anabranch_router, anabranch::ffi::RouterHandler,
                      anabranch::ffi::RouterBinding());
ANABRANCH_FFI_HANDLER(anabranch_router_grad, anabranch::ffi::RouterGradHandler,
                      anabranch::ffi::RouterGradBinding());
