// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "ffi/ffi_support.h"

namespace anabranch::ffi {
namespace {

// Hands x on once `until` exists: an edge of the schedule that no pass removes. XLA gives x and the
// result one memory, unless x is needed elsewhere.
xffi::Error HoldHandler(xffi::AnyBuffer x, xffi::AnyBuffer, xffi::Result<xffi::AnyBuffer> held) {
  if (held->untyped_data() != x.untyped_data()) {
    std::memcpy(held->untyped_data(), x.untyped_data(), x.size_bytes());
  }
  return xffi::Error::Success();
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_hold, HoldHandler,
                      xffi::Ffi::Bind()
                          .Arg<xffi::AnyBuffer>()    // x
                          .Arg<xffi::AnyBuffer>()    // until
                          .Ret<xffi::AnyBuffer>());  // x

}  // namespace anabranch::ffi
