// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/ffi_support.h"
#include "ops/pack_codes/pack_codes.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/wire/wire_rows.h"

namespace anabranch::ffi {
namespace {

// Enumerations travel as their numbers; others than the known ones are refused here, because
// tables are indexed by them.
Status Decode(int64_t format, int64_t axis, int64_t scale_mode, QuantizeOptions* options) {
  if (format < 0 || format >= kNumQuantizedFormats) {
    return InvalidArgument("quantize: format=", format, " is unknown");
  }
  if (scale_mode < 0 || scale_mode >= kNumScaleModes) {
    return InvalidArgument("quantize: scale_mode=", scale_mode, " is unknown");
  }
  options->format = static_cast<QuantizedFormat>(format);
  options->scale_mode = static_cast<ScaleMode>(scale_mode);
  options->axis = static_cast<int>(axis);
  return Status::Ok();
}

// Statistics that the caller gives no room for are not wanted.
TensorView Wanted(xffi::Result<xffi::AnyBuffer>& statistics) {
  const TensorView view = View(statistics);
  return view.num_elements() == 0 ? TensorView() : view;
}

xffi::Error QuantizeHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer group_sizes,
                            xffi::AnyBuffer key, xffi::Result<xffi::AnyBuffer> data,
                            xffi::Result<xffi::AnyBuffer> scale,
                            xffi::Result<xffi::AnyBuffer> tensor_scale,
                            xffi::Result<xffi::AnyBuffer> group_offsets,
                            xffi::Result<xffi::AnyBuffer> statistics, int64_t format, int64_t axis,
                            int64_t scale_mode, bool stochastic, bool strict, bool amax_per_group,
                            int64_t row_alignment) {
  QuantizeOptions options;
  const Status decoded = Decode(format, axis, scale_mode, &options);
  if (!decoded.ok()) return ToError(decoded);
  options.stochastic = stochastic;
  options.strict = strict;
  options.amax_per_group = amax_per_group;
  options.row_alignment = row_alignment;
  const QuantizeArgs args = {
      options,           View(x),     View(group_sizes),  View(key),
      View(data),        View(scale), View(tensor_scale), View(group_offsets),
      Wanted(statistics)};
  return ToError(RunWithScratch("quantize", pool, args, QuantizeScratchBytes, Quantize));
}

xffi::Error DequantizeHandler(xffi::ThreadPool pool, xffi::AnyBuffer data, xffi::AnyBuffer scale,
                              xffi::AnyBuffer tensor_scale, xffi::AnyBuffer group_sizes,
                              xffi::Result<xffi::AnyBuffer> out, int64_t format, int64_t axis,
                              int64_t row_alignment) {
  QuantizeOptions options;
  const Status decoded = Decode(format, axis, 0, &options);
  if (!decoded.ok()) return ToError(decoded);
  options.row_alignment = row_alignment;
  const DequantizeArgs args = {options,           View(data), View(scale), View(tensor_scale),
                               View(group_sizes), View(out)};
  return ToError(RunWithScratch("dequantize", pool, args, DequantizeScratchBytes, Dequantize));
}

xffi::Error QuantizeDequantizeHandler(xffi::ThreadPool pool, xffi::AnyBuffer x,
                                      xffi::AnyBuffer group_sizes, xffi::AnyBuffer key,
                                      xffi::AnyBuffer amax, xffi::Result<xffi::AnyBuffer> out,
                                      xffi::Result<xffi::AnyBuffer> tensor_scale,
                                      xffi::Result<xffi::AnyBuffer> statistics, int64_t format,
                                      int64_t axis, int64_t scale_mode, bool stochastic,
                                      bool strict, bool amax_per_group) {
  QuantizeOptions options;
  const Status decoded = Decode(format, axis, scale_mode, &options);
  if (!decoded.ok()) return ToError(decoded);
  options.stochastic = stochastic;
  options.strict = strict;
  options.amax_per_group = amax_per_group;
  QuantizeDequantizeArgs args = {options,           View(x),   View(group_sizes),
                                 View(key),         View(out), View(tensor_scale),
                                 Wanted(statistics)};
  if (View(amax).num_elements() > 0) args.amax = View(amax);
  return ToError(RunWithScratch("quantize_dequantize", pool, args, QuantizeDequantizeScratchBytes,
                                QuantizeDequantize));
}

xffi::Error QuantizeDequantizeBothHandler(
    xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer group_sizes,
    xffi::Result<xffi::AnyBuffer> out, xffi::Result<xffi::AnyBuffer> other_out,
    xffi::Result<xffi::AnyBuffer> tensor_scale, xffi::Result<xffi::AnyBuffer> statistics,
    xffi::Result<xffi::AnyBuffer> other_statistics, int64_t format, int64_t axis,
    int64_t scale_mode, bool strict, bool amax_per_group) {
  QuantizeOptions options;
  const Status decoded = Decode(format, axis, scale_mode, &options);
  if (!decoded.ok()) return ToError(decoded);
  options.strict = strict;
  options.amax_per_group = amax_per_group;
  const QuantizeDequantizeArgs one = {
      options, View(x), View(group_sizes), {}, View(out), View(tensor_scale), Wanted(statistics)};
  const QuantizeDequantizeBothArgs args = {one, View(other_out), Wanted(other_statistics)};
  return ToError(RunWithScratch("quantize_dequantize_both", pool, args,
                                QuantizeDequantizeBothScratchBytes, QuantizeDequantizeBoth));
}

xffi::Error TensorAmaxHandler(xffi::ThreadPool pool, xffi::AnyBuffer x, xffi::AnyBuffer group_sizes,
                              xffi::Result<xffi::AnyBuffer> amax, bool strict) {
  QuantizeOptions options;
  options.strict = strict;
  const TensorAmaxArgs args = {options, View(x), View(group_sizes), View(amax)};
  return ToError(RunWithScratch("tensor_amax", pool, args, TensorAmaxScratchBytes, TensorAmax));
}

xffi::Error RandomHadamardHandler(xffi::ThreadPool pool, xffi::AnyBuffer x,
                                  xffi::AnyBuffer group_sizes, xffi::Result<xffi::AnyBuffer> out,
                                  int64_t row_alignment) {
  const RandomHadamardArgs args = {row_alignment, View(x), View(group_sizes), View(out)};
  return ToError(
      RunWithScratch("random_hadamard", pool, args, RandomHadamardScratchBytes, RandomHadamard));
}

xffi::Error EncodeRowsHandler(xffi::ThreadPool pool, xffi::AnyBuffer x,
                              xffi::Result<xffi::AnyBuffer> slots) {
  XlaExecutor executor(pool);
  return ToError(EncodeRows({View(x), View(slots)}, {&executor, nullptr, 0}));
}

// The memory of an array of four-bit elements; absent for others.
template <typename PackedView>
PackedView Packed(const xffi::AnyBuffer& buffer) {
  if (buffer.element_type() != xffi::F4E2M1FN) return PackedView();
  const auto count = static_cast<int64_t>(buffer.element_count());
  return PackedView(buffer.untyped_data(), DType::kU8, {CeilDiv(count, 2)});
}

xffi::Error PackCodesHandler(xffi::ThreadPool pool, xffi::AnyBuffer codes,
                             xffi::Result<xffi::AnyBuffer> packed) {
  XlaExecutor executor(pool);
  return ToError(PackCodes({View(codes), Packed<TensorView>(*packed)}, {&executor, nullptr, 0}));
}

xffi::Error UnpackCodesHandler(xffi::ThreadPool pool, xffi::AnyBuffer packed,
                               xffi::Result<xffi::AnyBuffer> codes) {
  XlaExecutor executor(pool);
  return ToError(
      UnpackCodes({Packed<ConstTensorView>(packed), View(codes)}, {&executor, nullptr, 0}));
}

}  // namespace

ANABRANCH_FFI_HANDLER(anabranch_pack_codes, PackCodesHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // codes, a byte each
                          .Ret<xffi::AnyBuffer>());  // E2M1 in the same shape

ANABRANCH_FFI_HANDLER(anabranch_unpack_codes, UnpackCodesHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // E2M1
                          .Ret<xffi::AnyBuffer>());  // codes, a byte each, in the same shape

ANABRANCH_FFI_HANDLER(anabranch_encode_rows, EncodeRowsHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()    // x [M,H]
                          .Ret<xffi::AnyBuffer>());  // slots [M,WireBytes(H)]

ANABRANCH_FFI_HANDLER(anabranch_quantize, QuantizeHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x
                          .Arg<xffi::AnyBuffer>()  // group_sizes
                          .Arg<xffi::AnyBuffer>()  // key
                          .Ret<xffi::AnyBuffer>()  // data
                          .Ret<xffi::AnyBuffer>()  // scale
                          .Ret<xffi::AnyBuffer>()  // tensor_scale
                          .Ret<xffi::AnyBuffer>()  // group_offsets
                          .Ret<xffi::AnyBuffer>()  // statistics, [0] for none
                          .Attr<int64_t>("format")
                          .Attr<int64_t>("axis")
                          .Attr<int64_t>("scale_mode")
                          .Attr<bool>("stochastic")
                          .Attr<bool>("strict")
                          .Attr<bool>("amax_per_group")
                          .Attr<int64_t>("row_alignment"));

ANABRANCH_FFI_HANDLER(anabranch_dequantize, DequantizeHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // data
                          .Arg<xffi::AnyBuffer>()  // scale
                          .Arg<xffi::AnyBuffer>()  // tensor_scale
                          .Arg<xffi::AnyBuffer>()  // group_sizes
                          .Ret<xffi::AnyBuffer>()  // values
                          .Attr<int64_t>("format")
                          .Attr<int64_t>("axis")
                          .Attr<int64_t>("row_alignment"));

ANABRANCH_FFI_HANDLER(anabranch_quantize_dequantize, QuantizeDequantizeHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x
                          .Arg<xffi::AnyBuffer>()  // group_sizes
                          .Arg<xffi::AnyBuffer>()  // key
                          .Arg<xffi::AnyBuffer>()  // amax [G], [0] for none
                          .Ret<xffi::AnyBuffer>()  // values without the tensor scale
                          .Ret<xffi::AnyBuffer>()  // tensor_scale
                          .Ret<xffi::AnyBuffer>()  // statistics, [0] for none
                          .Attr<int64_t>("format")
                          .Attr<int64_t>("axis")
                          .Attr<int64_t>("scale_mode")
                          .Attr<bool>("stochastic")
                          .Attr<bool>("strict")
                          .Attr<bool>("amax_per_group"));

ANABRANCH_FFI_HANDLER(anabranch_quantize_dequantize_both, QuantizeDequantizeBothHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x
                          .Arg<xffi::AnyBuffer>()  // group_sizes
                          .Ret<xffi::AnyBuffer>()  // values without the tensor scale
                          .Ret<xffi::AnyBuffer>()  // those of blocks along the other axis
                          .Ret<xffi::AnyBuffer>()  // tensor_scale
                          .Ret<xffi::AnyBuffer>()  // statistics, [0] for none
                          .Ret<xffi::AnyBuffer>()  // other statistics, [0] for none
                          .Attr<int64_t>("format")
                          .Attr<int64_t>("axis")
                          .Attr<int64_t>("scale_mode")
                          .Attr<bool>("strict")
                          .Attr<bool>("amax_per_group"));

ANABRANCH_FFI_HANDLER(anabranch_tensor_amax, TensorAmaxHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x
                          .Arg<xffi::AnyBuffer>()  // group_sizes
                          .Ret<xffi::AnyBuffer>()  // amax [G]
                          .Attr<bool>("strict"));

ANABRANCH_FFI_HANDLER(anabranch_random_hadamard, RandomHadamardHandler,
                      xffi::Ffi::Bind()
                          .Ctx<xffi::ThreadPool>()
                          .Arg<xffi::AnyBuffer>()  // x
                          .Arg<xffi::AnyBuffer>()  // group_sizes
                          .Ret<xffi::AnyBuffer>()  // transformed rows
                          .Attr<int64_t>("row_alignment"));

}  // namespace anabranch::ffi
