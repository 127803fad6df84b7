// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_FFI_FFI_SUPPORT_H_
#define ANABRANCH_FFI_FFI_SUPPORT_H_

#include <type_traits>

#include "base/executor.h"
#include "base/scratch_block.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "xla/ffi/api/ffi.h"

// What every handler shares. A handler decodes its buffers into views, calls one operation, and
// returns ToError(status): no arithmetic happens here.

namespace anabranch::ffi {

namespace xffi = ::xla::ffi;

// XLA's intra-operation pool behind our interface. The caller works too, so that a pool of one
// thread, or one that is busy elsewhere, only slows us down.
class XlaExecutor final : public Executor {
 public:
  explicit XlaExecutor(xffi::ThreadPool pool);
  int num_workers() const override { return num_workers_; }
  void ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) override;

 private:
  xffi::ThreadPool pool_;
  int num_workers_;
};

// Views of XLA's buffers; rank 0 becomes [1]. An element type that no operation takes, or a rank
// above 4, becomes an absent view, which the operation's own validation then reports.
ConstTensorView View(const xffi::AnyBuffer& buffer);
TensorView View(xffi::Result<xffi::AnyBuffer>& buffer);

xffi::Error ToError(const Status& status);

// Runs `run`(args, context) on XLA's pool with scratch of `scratch_bytes`(args, workers), or of
// `scratch_bytes`(args) where workers do not matter. Sizing comes before the operation validates
// `args`: check the ranks that it relies on first.
template <typename Args, typename Size, typename Operation>
Status RunWithScratch(const char* op, xffi::ThreadPool pool, const Args& args, Size scratch_bytes,
                      Operation run) {
  XlaExecutor executor(pool);
  int64_t bytes = 0;
  if constexpr (std::is_invocable_v<Size, const Args&, int>) {
    bytes = scratch_bytes(args, executor.num_workers());
  } else {
    bytes = scratch_bytes(args);
  }
  const ScratchBlock scratch(bytes);
  ANABRANCH_RETURN_IF_ERROR(scratch.status(op));
  Context context = scratch.context(&executor);
  return run(args, context);
}

}  // namespace anabranch::ffi

// Defines the exported C symbol of a handler; the module hides everything else.
#define ANABRANCH_FFI_HANDLER(symbol, function, binding)                                       \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol, function, binding)

#endif  // ANABRANCH_FFI_FFI_SUPPORT_H_
