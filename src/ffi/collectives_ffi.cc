// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <span>

#include "comm/collectives/collectives.h"
#include "ffi/ffi_support.h"
#include "ffi/meet.h"

// Between processes alone: among the devices of one process XLA's own collectives serve.

namespace anabranch::ffi {
namespace {

using xffi::AnyBuffer;
using Output = xffi::Result<AnyBuffer>;

template <typename Args>
Status NotAmongDevices(std::span<const Args* const> /*all*/, Executor& /*executor*/) {
  return MakeStatus(StatusCode::kUnimplemented,
                    "sum_over_ranks, gather_over_ranks: ranks must be "
                    "processes");
}

xffi::Future SumHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place, AnyBuffer x,
                        Output y, int64_t ranks, int64_t site, bool processes) {
  const SumOverRanksArgs args = {static_cast<const float*>(x.untyped_data()),
                                 static_cast<float*>(y->untyped_data()),
                                 static_cast<int64_t>(x.element_count())};
  return Meet("sum_over_ranks", {run, pool, View(place), ranks, site, processes}, args.count, args,
              NotAmongDevices<SumOverRanksArgs>,
              [](const SumOverRanksArgs& mine, const Call& call, Transport& transport,
                 Executor& executor) { return SumOverRanks(mine, call, transport, executor); });
}

xffi::Future GatherHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place, AnyBuffer x,
                           Output y, int64_t ranks, int64_t site, bool processes) {
  const GatherOverRanksArgs args = {x.untyped_data(), static_cast<int64_t>(x.size_bytes()),
                                    y->untyped_data()};
  return Meet("gather_over_ranks", {run, pool, View(place), ranks, site, processes}, args.bytes,
              args, NotAmongDevices<GatherOverRanksArgs>,
              [](const GatherOverRanksArgs& mine, const Call& call, Transport& transport,
                 Executor&) { return GatherOverRanks(mine, call, transport); });
}

auto BindCollective() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::RunId>()
      .Ctx<xffi::ThreadPool>()
      .Arg<AnyBuffer>()  // place [2]
      .Arg<AnyBuffer>()  // x
      .Ret<AnyBuffer>()  // y as x, or [ranks, ...]
      .Attr<int64_t>("ranks")
      .Attr<int64_t>("site")
      .Attr<bool>("processes");
}

}  // namespace
}  // namespace anabranch::ffi

ANABRANCH_FFI_HANDLER(anabranch_sum_over_ranks, anabranch::ffi::SumHandler,
                      anabranch::ffi::BindCollective());
ANABRANCH_FFI_HANDLER(anabranch_gather_over_ranks, anabranch::ffi::GatherHandler,
                      anabranch::ffi::BindCollective());
