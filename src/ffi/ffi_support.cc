// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"

#include <algorithm>
#include <thread>

namespace anabranch::ffi {
namespace {

bool ToDType(xffi::DataType type, DType* dtype) {
  switch (type) {
    case xffi::F32:
      *dtype = DType::kF32;
      return true;
    case xffi::BF16:
      *dtype = DType::kBF16;
      return true;
    case xffi::S32:
      *dtype = DType::kI32;
      return true;
    case xffi::U8:
      *dtype = DType::kU8;
      return true;
    case xffi::F8E4M3FN:
      *dtype = DType::kE4M3;
      return true;
    case xffi::F8E5M2:
      *dtype = DType::kE5M2;
      return true;
    case xffi::F8E8M0FNU:
      *dtype = DType::kE8M0;
      return true;
    default:
      return false;
  }
}

template <typename View, typename Buffer>
View MakeView(const Buffer& buffer) {
  DType dtype;
  const auto dimensions = buffer.dimensions();
  if (!ToDType(buffer.element_type(), &dtype)) return View();
  void* data = buffer.untyped_data();
  switch (dimensions.size()) {
    case 0:
      return View(data, dtype, {1});
    case 1:
      return View(data, dtype, {dimensions[0]});
    case 2:
      return View(data, dtype, {dimensions[0], dimensions[1]});
    case 3:
      return View(data, dtype, {dimensions[0], dimensions[1], dimensions[2]});
    case 4:
      return View(data, dtype, {dimensions[0], dimensions[1], dimensions[2], dimensions[3]});
    default:
      return View();
  }
}

}  // namespace

XlaExecutor::XlaExecutor(xffi::ThreadPool pool) : pool_(pool) {
  // num_threads() does not count the calling thread, which works too; more workers than the
  // process may use would only take turns. XLA sizes its pool by affinity, so its number stands.
  num_workers_ = static_cast<int>(std::max<int64_t>(pool_.num_threads(), 1));
}

void XlaExecutor::ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) {
  if (num_units <= 0) return;
  const auto loop = std::make_shared<ParallelLoop>(num_units, num_workers_, &unit);
  const int64_t helpers = std::min<int64_t>(num_workers_, num_units) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    pool_.Schedule([loop] { loop->Participate(); });
  }
  loop->ParticipateAndWait();
}

ConstTensorView View(const xffi::AnyBuffer& buffer) { return MakeView<ConstTensorView>(buffer); }

TensorView View(xffi::Result<xffi::AnyBuffer>& buffer) { return MakeView<TensorView>(*buffer); }

xffi::Error ToError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return xffi::Error::Success();
    // One prefix for every fault of the caller's arguments. Which Python class carries it is JAX's
    // choice: JaxRuntimeError, or ValueError when a cached call runs inline.
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return xffi::Error::InvalidArgument(status.message());
    case StatusCode::kResourceExhausted:
      return xffi::Error(xffi::ErrorCode::kResourceExhausted, status.message());
    case StatusCode::kUnimplemented:
      return xffi::Error(xffi::ErrorCode::kUnimplemented, status.message());
    case StatusCode::kDeadlineExceeded:
      return xffi::Error(xffi::ErrorCode::kDeadlineExceeded, status.message());
    case StatusCode::kInternal:
      return xffi::Error::Internal(status.message());
  }
  return xffi::Error::Internal("unknown status code");
}

}  // namespace anabranch::ffi
