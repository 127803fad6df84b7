// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <span>
#include <vector>

#include "comm/expert_parallel/combine.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/prepare.h"
#include "comm/wire/wire.h"
#include "ffi/ffi_support.h"
#include "ffi/meet.h"

namespace anabranch::ffi {
namespace {

using expert_parallel::CombineArgs;
using expert_parallel::DispatchArgs;
using expert_parallel::PrepareArgs;
using expert_parallel::WaveRows;
using xffi::AnyBuffer;
using Output = xffi::Result<AnyBuffer>;

xffi::Future PrepareHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place,
                            AnyBuffer experts, AnyBuffer rank_of_expert, Output plan,
                            Output group_sizes, Output group_offsets, Output report, int64_t ranks,
                            int64_t site, bool processes, int64_t alignment, int64_t capacity,
                            int64_t overflow) {
  const PrepareArgs args = {.experts = View(experts),
                            .rank_of_expert = View(rank_of_expert),
                            .alignment = alignment,
                            .capacity = capacity,
                            .overflow = static_cast<expert_parallel::Overflow>(overflow),
                            .plan = View(plan),
                            .group_sizes = View(group_sizes),
                            .group_offsets = View(group_offsets),
                            .report = View(report)};
  return Meet(
      "expert_parallel_prepare", {run, pool, View(place), ranks, site, processes}, capacity, args,
      [](std::span<const PrepareArgs* const> all, Executor& executor) {
        return expert_parallel::PrepareTogether(all, executor);
      },
      [](const PrepareArgs& mine, const Call& call, Transport& transport, Executor&) {
        return expert_parallel::Prepare(mine, call, transport);
      });
}

xffi::Future DispatchHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place,
                             AnyBuffer plan, AnyBuffer x, AnyBuffer weights, Output rows,
                             Output row_weights, int64_t ranks, int64_t site, bool processes,
                             bool weighted, int64_t wave, int64_t waves) {
  const DispatchArgs args = {.plan = View(plan),
                             .x = View(x),
                             .weights = weighted ? View(weights) : ConstTensorView(),
                             .rows = View(rows),
                             .row_weights = weighted ? View(row_weights) : TensorView(),
                             .wave = wave,
                             .waves = {.count = waves}};
  return Meet(
      "expert_parallel_dispatch", {run, pool, View(place), ranks, site, processes}, weighted, args,
      [](std::span<const DispatchArgs* const> all, Executor& executor) {
        return expert_parallel::DispatchTogether(all, executor);
      },
      [](const DispatchArgs& mine, const Call& call, Transport& transport, Executor& executor) {
        const Status status = expert_parallel::Dispatch(mine, call, transport, executor);
        DelayDispatch();  // here, so that all ranks wait at the same time
        return status;
      });
}

// waves: rows and row_weights of each wave in turn.
xffi::Future CombineHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place, AnyBuffer plan,
                            xffi::RemainingArgs waves, Output y, Output weights, int64_t ranks,
                            int64_t site, bool processes, bool weighted, int64_t domain_size) {
  CombineArgs args;
  args.plan = View(plan);
  args.y = View(y);
  if (weighted) args.weights = View(weights);
  args.domain_size = domain_size;
  for (size_t i = 0; i + 1 < waves.size(); i += 2) {
    const auto rows = waves.get<AnyBuffer>(i);
    const auto row_weights = waves.get<AnyBuffer>(i + 1);
    if (!rows.has_value() || !row_weights.has_value()) continue;  // nothing but buffers is passed
    const WaveRows wave = {View(*rows), weighted ? View(*row_weights) : ConstTensorView()};
    if (i == 0) {
      args.rows = wave.rows;
      args.row_weights = wave.row_weights;
    } else {
      args.later_waves.push_back(wave);
    }
  }
  return Meet(
      "expert_parallel_combine", {run, pool, View(place), ranks, site, processes}, weighted, args,
      [](std::span<const CombineArgs* const> all, Executor& executor) {
        return expert_parallel::CombineTogether(all, executor);
      },
      [](const CombineArgs& mine, const Call& call, Transport& transport, Executor& executor) {
        return expert_parallel::Combine(mine, call, transport, executor);
      });
}

xffi::Error DecodeHandler(xffi::ThreadPool pool, AnyBuffer plan, AnyBuffer slots, Output rows,
                          int64_t wave, int64_t waves) {
  XlaExecutor executor(pool);
  return ToError(expert_parallel::Decode(
      {View(plan), View(slots), View(rows), wave, {.count = waves}}, {&executor, nullptr, 0}));
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
                          .Attr<bool>("processes")
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
                          .Attr<bool>("processes")
                          .Attr<bool>("weighted")
                          .Attr<int64_t>("wave")
                          .Attr<int64_t>("waves"));
ANABRANCH_FFI_HANDLER(anabranch_expert_parallel_combine, anabranch::ffi::CombineHandler,
                      anabranch::ffi::Bind()
                          .Arg<AnyBuffer>()  // place [2]
                          .Arg<AnyBuffer>()  // plan
                          .RemainingArgs()   // rows [C,H], row_weights [C] or anything, by wave
                          .Ret<AnyBuffer>()  // y [T,H]
                          .Ret<AnyBuffer>()  // weights [T,k], or anything
                          .Attr<int64_t>("ranks")
                          .Attr<int64_t>("site")
                          .Attr<bool>("processes")
                          .Attr<bool>("weighted")
                          .Attr<int64_t>("domain_size"));
ANABRANCH_FFI_HANDLER(anabranch_expert_parallel_decode, anabranch::ffi::DecodeHandler,
                      xla::ffi::Ffi::Bind()
                          .Ctx<xla::ffi::ThreadPool>()
                          .Arg<AnyBuffer>()  // plan
                          .Arg<AnyBuffer>()  // slots [C,WireBytes(H)]
                          .Ret<AnyBuffer>()  // rows [C,H]
                          .Attr<int64_t>("wave")
                          .Attr<int64_t>("waves"));
