// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <span>
#include <vector>

#include "comm/expert_parallel/combine.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/prepare.h"
#include "ffi/ffi_support.h"
#include "ffi/meet.h"

namespace anabranch::ffi {
namespace {

using expert_parallel::CombineArgs;
using expert_parallel::DispatchArgs;
using expert_parallel::PrepareArgs;
using xffi::AnyBuffer;
using Output = xffi::Result<AnyBuffer>;

xffi::Future PrepareHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place,
                            AnyBuffer experts, AnyBuffer rank_of_expert, Output plan,
                            Output group_sizes, Output group_offsets, Output report, int64_t ranks,
                            int64_t site, int64_t alignment, int64_t capacity, int64_t overflow) {
  const PrepareArgs args = {.experts = View(experts),
                            .rank_of_expert = View(rank_of_expert),
                            .alignment = alignment,
                            .capacity = capacity,
                            .overflow = static_cast<expert_parallel::Overflow>(overflow),
                            .plan = View(plan),
                            .group_sizes = View(group_sizes),
                            .group_offsets = View(group_offsets),
                            .report = View(report)};
  return Meet("expert_parallel_prepare", {run, pool, View(place), ranks, site}, capacity, args,
              [](std::span<const PrepareArgs* const> all, Executor& executor) {
                return expert_parallel::PrepareTogether(all, executor);
              });
}

xffi::Future DispatchHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place,
                             AnyBuffer plan, AnyBuffer x, AnyBuffer weights, Output rows,
                             Output row_weights, int64_t ranks, int64_t site, bool weighted) {
  const DispatchArgs args = {.plan = View(plan),
                             .x = View(x),
                             .weights = weighted ? View(weights) : ConstTensorView(),
                             .rows = View(rows),
                             .row_weights = weighted ? View(row_weights) : TensorView()};
  return Meet("expert_parallel_dispatch", {run, pool, View(place), ranks, site}, weighted, args,
              [](std::span<const DispatchArgs* const> all, Executor& executor) {
                return expert_parallel::DispatchTogether(all, executor);
              });
}

xffi::Future CombineHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place, AnyBuffer plan,
                            AnyBuffer rows, AnyBuffer row_weights, Output y, Output weights,
                            int64_t ranks, int64_t site, bool weighted) {
  const CombineArgs args = {.plan = View(plan),
                            .rows = View(rows),
                            .row_weights = weighted ? View(row_weights) : ConstTensorView(),
                            .y = View(y),
                            .weights = weighted ? View(weights) : TensorView()};
  return Meet("expert_parallel_combine", {run, pool, View(place), ranks, site}, weighted, args,
              [](std::span<const CombineArgs* const> all, Executor& executor) {
                return expert_parallel::CombineTogether(all, executor);
              });
}

auto Bind() { return xffi::Ffi::Bind().Ctx<xffi::RunId>().Ctx<xffi::ThreadPool>(); }

}  // namespace
}  // namespace anabranch::ffi

using anabranch::ffi::AnyBuffer;

ANABRANCH_FFI_HANDLER(anabranch_expert_parallel_prepare, anabranch::ffi::PrepareHandler,
                      anabranch::ffi::Bind()
                          .Arg<AnyBuffer>()  // place [2]
                          .Arg<AnyBuffer>()  // experts [T,k]
                          .Arg<AnyBuffer>()  // rank_of_expert [E]
                          .Ret<AnyBuffer>()  // plan [words]
                          .Ret<AnyBuffer>()  // group_sizes [L]
                          .Ret<AnyBuffer>()  // group_offsets [L+1]
                          .Ret<AnyBuffer>()  // report [3]
                          .Attr<int64_t>("ranks")
                          .Attr<int64_t>("site")
                          .Attr<int64_t>("alignment")
                          .Attr<int64_t>("capacity")
                          .Attr<int64_t>("overflow"));
ANABRANCH_FFI_HANDLER(anabranch_expert_parallel_dispatch, anabranch::ffi::DispatchHandler,
                      anabranch::ffi::Bind()
                          .Arg<AnyBuffer>()  // place [2]
                          .Arg<AnyBuffer>()  // plan
                          .Arg<AnyBuffer>()  // x [T,H]
                          .Arg<AnyBuffer>()  // weights [T,k], or anything
                          .Ret<AnyBuffer>()  // rows [C,H]
                          .Ret<AnyBuffer>()  // row_weights [C], or anything
                          .Attr<int64_t>("ranks")
                          .Attr<int64_t>("site")
                          .Attr<bool>("weighted"));
ANABRANCH_FFI_HANDLER(anabranch_expert_parallel_combine, anabranch::ffi::CombineHandler,
                      anabranch::ffi::Bind()
                          .Arg<AnyBuffer>()  // place [2]
                          .Arg<AnyBuffer>()  // plan
                          .Arg<AnyBuffer>()  // rows [C,H]
                          .Arg<AnyBuffer>()  // row_weights [C], or anything
                          .Ret<AnyBuffer>()  // y [T,H]
                          .Ret<AnyBuffer>()  // weights [T,k], or anything
                          .Attr<int64_t>("ranks")
                          .Attr<int64_t>("site")
                          .Attr<bool>("weighted"));
