// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/grouped_gemm/grouped_gemm.h"

namespace anabranch::ffi {
namespace {

xffi::Error GroupedGemmHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer w,
                               xffi::AnyBuffer group_sizes, xffi::Result<xffi::AnyBuffer> y) {
  const GroupedGemmArgs args{View(x), View(w), View(group_sizes), View(y)};
  return ToError(RunWithScratch("grouped_gemm", pool, args, GroupedGemmScratchBytes, GroupedGemm));
}

xffi::Error GroupedGemmDgradHandler(xffi::ThreadPool pool, xffi::AnyBuffer dy, xffi::AnyBuffer w,
                                    xffi::AnyBuffer group_sizes, xffi::Result<xffi::AnyBuffer> dx) {
  const GroupedGemmDgradArgs args{View(dy), View(w), View(group_sizes), View(dx)};
  return ToError(RunWithScratch("grouped_gemm_dgrad", pool, args, GroupedGemmDgradScratchBytes,
                                GroupedGemmDgrad));
}

// The format travels as its number; facts are looked up by it.
Status Decode(int64_t format, int64_t axis, ConstTensorView scale, WeightCoding* coding) {
  if (format < 0 || format >= kNumQuantizedFormats || (axis != 0 && axis != 1)) {
    return InvalidArgument("grouped_gemm: format=", format, " or axis=", axis, " is unknown");
  }
  *coding = {static_cast<QuantizedFormat>(format), static_cast<int>(axis), scale};
  return Status::Ok();
}

xffi::Error GroupedGemmCodedHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer w,
                                    xffi::AnyBuffer group_sizes, xffi::AnyBuffer scale,
                                    xffi::Result<xffi::AnyBuffer> y, int64_t format, int64_t axis) {
  GroupedGemmCodedArgs args{{View(x), View(w), View(group_sizes), View(y)}, {}};
  const Status status = Decode(format, axis, View(scale), &args.coding);
  if (!status.ok()) return ToError(status);
  return ToError(RunWithScratch("grouped_gemm_coded", pool, args, GroupedGemmCodedScratchBytes,
                                GroupedGemmCoded));
}

xffi::Error GroupedGemmDgradCodedHandler(xffi::ThreadPool pool, xffi::AnyBuffer dy,
                                         xffi::AnyBuffer w, xffi::AnyBuffer group_sizes,
                                         xffi::AnyBuffer scale, xffi::Result<xffi::AnyBuffer> dx,
                                         int64_t format, int64_t axis) {
  GroupedGemmDgradCodedArgs args{{View(dy), View(w), View(group_sizes), View(dx)}, {}};
  const Status status = Decode(format, axis, View(scale), &args.coding);
  if (!status.ok()) return ToError(status);
  return ToError(RunWithScratch("grouped_gemm_dgrad_coded", pool, args,
                                GroupedGemmDgradCodedScratchBytes, GroupedGemmDgradCoded));
}

xffi::Error GroupedGemmWgradHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer dy,
                                    xffi::AnyBuffer group_sizes, xffi::AnyBuffer scale,
                                    xffi::Result<xffi::AnyBuffer> dw, int64_t num_leaves) {
  GroupedGemmWgradArgs args{View(x), View(dy), View(group_sizes), View(dw), num_leaves};
  if (View(scale).num_elements() > 0) args.scale = View(scale);
  return ToError(RunWithScratch("grouped_gemm_wgrad", pool, args, GroupedGemmWgradScratchBytes,
                                GroupedGemmWgrad));
}

// Three operands (x, w | dy, w; then group_sizes) and one result each.
auto Signature() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::ThreadPool>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Ret<xffi::AnyBuffer>();
}

// Four operands and one result.
auto FourOperands() {
  return xffi::Ffi::Bind()
      .Ctx<xffi::ThreadPool>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Arg<xffi::AnyBuffer>()
      .Ret<xffi::AnyBuffer>();
}

// x, dy, group_sizes, and [E] scales or [0].
auto WgradSignature() { return FourOperands().Attr<int64_t>("num_leaves"); }

// x | dy, codes of w, group_sizes, scales of w.
auto CodedSignature() { return FourOperands().Attr<int64_t>("format").Attr<int64_t>("axis"); }

}  // namespace
}  // namespace anabranch::ffi

ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm, anabranch::ffi::GroupedGemmHandler,
                      anabranch::ffi::Signature());
ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm_dgrad, anabranch::ffi::GroupedGemmDgradHandler,
                      anabranch::ffi::Signature());
ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm_wgrad, anabranch::ffi::GroupedGemmWgradHandler,
                      anabranch::ffi::WgradSignature());
ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm_coded, anabranch::ffi::GroupedGemmCodedHandler,
                      anabranch::ffi::CodedSignature());
ANABRANCH_FFI_HANDLER(anabranch_grouped_gemm_dgrad_coded,
                      anabranch::ffi::GroupedGemmDgradCodedHandler,
                      anabranch::ffi::CodedSignature());
