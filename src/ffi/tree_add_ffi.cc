// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/tree_add/tree_add.h"

namespace anabranch::ffi {
namespace {

xffi::Error TreeAddHandler(xffi::ThreadPool pool, xffi::AnyBuffer a, xffi::AnyBuffer b,
                           xffi::Result<xffi::AnyBuffer> sum) {
  XlaExecutor executor(pool);
  Context context{&executor, nullptr, 0};
  return ToError(TreeAdd({View(a), View(b), View(sum)}, context));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_tree_add, TreeAddHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // a
                          .Arg<xffi::AnyBuffer>()    // b
                          .Ret<xffi::AnyBuffer>());  // sum

}  // namespace anabranch::ffi
