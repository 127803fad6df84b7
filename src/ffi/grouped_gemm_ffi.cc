// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/grouped_gemm/grouped_gemm.h"

namespace anabranch::ffi {
namespace {

// Scratch, then the operation: what the three products share.
template <typename Args>
xffi::Error Run(const char* op, Status (*run)(const Args&, const Context&),
                int64_t (*scratch_bytes)(const Args&, int), const Args& args,
                xffi::ThreadPool pool) {
  XlaExecutor executor(pool);
  const ScratchBlock scratch(scratch_bytes(args, executor.num_workers()));
  const Status status = scratch.status(op);
  if (!status.ok()) return ToError(status);
  return ToError(run(args, scratch.context(&executor)));
}

xffi::Error GroupedGemmHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer w,
                               xffi::AnyBuffer group_sizes, xffi::Result<xffi::AnyBuffer> y) {
  const GroupedGemmArgs args{View(x), View(w), View(group_sizes), View(y)};
  return Run("grouped_gemm", GroupedGemm, GroupedGemmScratchBytes, args, pool);
}

xffi::Error GroupedGemmDgradHandler(xffi::ThreadPool pool, xffi::AnyBuffer dy, xffi::AnyBuffer w,
                                    xffi::AnyBuffer group_sizes, xffi::Result<xffi::AnyBuffer> dx) {
  const GroupedGemmDgradArgs args{View(dy), View(w), View(group_sizes), View(dx)};
  return Run("grouped_gemm_dgrad", GroupedGemmDgrad, GroupedGemmDgradScratchBytes, args, pool);
}

xffi::Error GroupedGemmWgradHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer dy,
                                    xffi::AnyBuffer group_sizes, xffi::Result<xffi::AnyBuffer> dw,
                                    int64_t num_leaves) {
  const GroupedGemmWgradArgs args{View(x), View(dy), View(group_sizes), View(dw), num_leaves};
  return Run("grouped_gemm_wgrad", GroupedGemmWgrad, GroupedGemmWgradScratchBytes, args, pool);
}

// Three operands (x, w | dy, w | x, dy; then group_sizes) and one result each.
auto Signature() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::ThreadPool>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Ret<xffi::AnyBuffer>();
}

}  // namespace
}  // namespace anabranch::ffi

ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm, anabranch::ffi::GroupedGemmHandler,
                      anabranch::ffi::Signature());
ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm_dgrad, anabranch::ffi::GroupedGemmDgradHandler,
                      anabranch::ffi::Signature());
ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm_wgrad, anabranch::ffi::GroupedGemmWgradHandler,
                      anabranch::ffi::Signature().Attr<int64_t>("num_leaves"));
