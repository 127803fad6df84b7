// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/ragged_plan/ragged_plan.h"
#include "ops/ragged_plan/rows.h"

namespace anabranch::ffi {
namespace {

using xffi::AnyBuffer;
using Output = xffi::Result<AnyBuffer>;

Status RunPlan(xffi::ThreadPool pool, const RaggedPlanArgs& args) {
  const int64_t num_experts = args.group_sizes.rank() == 1 ? args.group_sizes.size(0) : 0;
  const auto scratch_bytes = [num_experts](const RaggedPlanArgs& plan) {
    return RaggedPlanScratchBytes(plan.experts.num_elements(), num_experts);
  };
  return RunWithScratch("ragged_plan", pool, args, scratch_bytes, RaggedPlan);
}

// The row operations take no scratch.
template <typename Args>
xffi::Error RunRows(Status (*run)(const Args&, Context&), xffi::ThreadPool pool, const Args& args) {
  XlaExecutor executor(pool);
  Context context{&executor, nullptr, 0};
  return ToError(run(args, context));
}

xffi::Error RaggedPlanHandler(xffi::ThreadPool pool, AnyBuffer experts, Output group_sizes,
                              Output group_offsets, Output row_token, Output slot_row) {
  return ToError(RunPlan(pool, {View(experts), View(group_sizes), View(group_offsets),
                                View(row_token), View(slot_row)}));
}

xffi::Error GatherRowsHandler(xffi::ThreadPool pool, AnyBuffer x, AnyBuffer row_token,
                              Output rows) {
  return RunRows(GatherRows, pool, {View(x), View(row_token), View(rows)});
}

xffi::Error GatherWeightsHandler(xffi::ThreadPool pool, AnyBuffer weights, AnyBuffer slot_row,
                                 Output row_weights) {
  return RunRows(GatherWeights, pool, {View(weights), View(slot_row), View(row_weights)});
}

xffi::Error CombineRowsHandler(xffi::ThreadPool pool, AnyBuffer rows, AnyBuffer slot_row,
                               AnyBuffer weights, Output y, bool weighted) {
  return RunRows(
      CombineRows, pool,
      {View(rows), View(slot_row), weighted ? View(weights) : ConstTensorView(), View(y)});
}

xffi::Error CombineRowsGradHandler(xffi::ThreadPool pool, AnyBuffer rows, AnyBuffer slot_row,
                                   AnyBuffer group_offsets, AnyBuffer weights, AnyBuffer d_y,
                                   Output d_rows, Output d_weights) {
  return RunRows(CombineRowsGrad, pool,
                 {View(rows), View(slot_row), View(group_offsets), View(weights), View(d_y),
                  View(d_rows), View(d_weights)});
}

auto Bind() { return xffi::Ffi::Bind().Ctx<xffi::ThreadPool>(); }

}  // namespace
}  // namespace anabranch::ffi

using anabranch::ffi::AnyBuffer;

ANABRANCH_FFI_HANDLER(anabranch_ragged_plan, anabranch::ffi::RaggedPlanHandler,
                      anabranch::ffi::Bind()
                          .Arg<AnyBuffer>()
                          .Ret<AnyBuffer>()
                          .Ret<AnyBuffer>()
                          .Ret<AnyBuffer>()
                          .Ret<AnyBuffer>());
ANABRANCH_FFI_HANDLER(anabranch_gather_rows, anabranch::ffi::GatherRowsHandler,
                      anabranch::ffi::Bind().Arg<AnyBuffer>().Arg<AnyBuffer>().Ret<AnyBuffer>());
ANABRANCH_FFI_HANDLER(anabranch_gather_weights, anabranch::ffi::GatherWeightsHandler,
                      anabranch::ffi::Bind().Arg<AnyBuffer>().Arg<AnyBuffer>().Ret<AnyBuffer>());
ANABRANCH_FFI_HANDLER(anabranch_combine_rows, anabranch::ffi::CombineRowsHandler,
                      anabranch::ffi::Bind()
                          .Arg<AnyBuffer>()
                          .Arg<AnyBuffer>()
                          .Arg<AnyBuffer>()
                          .Ret<AnyBuffer>()
                          .Attr<bool>("weighted"));
ANABRANCH_FFI_HANDLER(anabranch_combine_rows_grad, anabranch::ffi::CombineRowsGradHandler,
                      anabranch::ffi::Bind()
                          .Arg<AnyBuffer>()
                          .Arg<AnyBuffer>()
                          .Arg<AnyBuffer>()
                          .Arg<AnyBuffer>()
                          .Arg<AnyBuffer>()
                          .Ret<AnyBuffer>()
                          .Ret<AnyBuffer>());
