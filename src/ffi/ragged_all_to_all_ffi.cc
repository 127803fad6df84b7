// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <span>

#include "comm/ragged_all_to_all/ragged_all_to_all.h"
#include "ffi/ffi_support.h"
#include "ffi/meet.h"

namespace anabranch::ffi {
namespace {

using xffi::AnyBuffer;
using Output = xffi::Result<AnyBuffer>;

int64_t Rows(const AnyBuffer& buffer) {
  return buffer.dimensions().size() == 0 ? 0 : buffer.dimensions()[0];
}

// Arrays of any type: rows are bytes. Python has checked that operand and output agree.
RaggedAllToAllArgs ToArgs(const AnyBuffer& operand, const AnyBuffer& output, int64_t row_bytes,
                          const AnyBuffer& input_offsets, const AnyBuffer& send_sizes,
                          const AnyBuffer& output_offsets, const AnyBuffer& recv_sizes) {
  return {.operand = operand.untyped_data(),
          .operand_rows = Rows(operand),
          .output = output.untyped_data(),
          .output_rows = Rows(output),
          .row_bytes = row_bytes,
          .input_offsets = View(input_offsets),
          .send_sizes = View(send_sizes),
          .output_offsets = View(output_offsets),
          .recv_sizes = View(recv_sizes)};
}

// result shares its memory with output.
xffi::Future ForwardHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place,
                            AnyBuffer operand, AnyBuffer /*output*/, AnyBuffer input_offsets,
                            AnyBuffer send_sizes, AnyBuffer output_offsets, AnyBuffer recv_sizes,
                            Output result, int64_t ranks, int64_t site, bool processes,
                            int64_t row_bytes) {
  const RaggedAllToAllArgs args =
      ToArgs(operand, *result, row_bytes, input_offsets, send_sizes, output_offsets, recv_sizes);
  return Meet(
      "ragged_all_to_all", {run, pool, View(place), ranks, site, processes}, row_bytes, args,
      [](std::span<const RaggedAllToAllArgs* const> all, Executor& executor) {
        return RaggedAllToAllTogether(all, executor);
      },
      RaggedAllToAll);
}

xffi::Future GradHandler(xffi::RunId run, xffi::ThreadPool pool, AnyBuffer place,
                         AnyBuffer gradient, AnyBuffer input_offsets, AnyBuffer send_sizes,
                         AnyBuffer output_offsets, AnyBuffer recv_sizes, Output d_operand,
                         Output d_output, int64_t ranks, int64_t site, bool processes,
                         int64_t row_bytes) {
  const RaggedAllToAllGradArgs args = {
      .args = ToArgs(*d_operand, gradient, row_bytes, input_offsets, send_sizes, output_offsets,
                     recv_sizes),
      .dtype = gradient.element_type() == xffi::BF16 ? DType::kBF16 : DType::kF32,
      .d_operand = d_operand->untyped_data(),
      .d_output = d_output->untyped_data()};
  return Meet(
      "ragged_all_to_all_grad", {run, pool, View(place), ranks, site, processes}, row_bytes, args,
      [](std::span<const RaggedAllToAllGradArgs* const> all, Executor& executor) {
        return RaggedAllToAllGradTogether(all, executor);
      },
      [](const RaggedAllToAllGradArgs& mine, const Call& call, Transport& transport, Executor&) {
        return RaggedAllToAllGrad(mine, call, transport);
      });
}

}  // namespace
}  // namespace anabranch::ffi

using anabranch::ffi::AnyBuffer;

ANABRANCH_FFI_HANDLER(anabranch_ragged_all_to_all, anabranch::ffi::ForwardHandler,
                      xla::ffi::Ffi::Bind()
                          .Ctx<xla::ffi::RunId>()
                          .Ctx<xla::ffi::ThreadPool>()
                          .Arg<AnyBuffer>()  // place [2]
                          .Arg<AnyBuffer>()  // operand [N,...]
                          .Arg<AnyBuffer>()  // output [M,...]
                          .Arg<AnyBuffer>()  // input_offsets
                          .Arg<AnyBuffer>()  // send_sizes
                          .Arg<AnyBuffer>()  // output_offsets
                          .Arg<AnyBuffer>()  // recv_sizes
                          .Ret<AnyBuffer>()  // result [M,...], in output's memory
                          .Attr<int64_t>("ranks")
                          .Attr<int64_t>("site")
                          .Attr<bool>("processes")
                          .Attr<int64_t>("row_bytes"));
ANABRANCH_FFI_HANDLER(anabranch_ragged_all_to_all_grad, anabranch::ffi::GradHandler,
                      xla::ffi::Ffi::Bind()
                          .Ctx<xla::ffi::RunId>()
                          .Ctx<xla::ffi::ThreadPool>()
                          .Arg<AnyBuffer>()  // place [2]
                          .Arg<AnyBuffer>()  // gradient [M,...]
                          .Arg<AnyBuffer>()  // input_offsets
                          .Arg<AnyBuffer>()  // send_sizes
                          .Arg<AnyBuffer>()  // output_offsets
                          .Arg<AnyBuffer>()  // recv_sizes
                          .Ret<AnyBuffer>()  // d_operand [N,...]
                          .Ret<AnyBuffer>()  // d_output [M,...]
                          .Attr<int64_t>("ranks")
                          .Attr<int64_t>("site")
                          .Attr<bool>("processes")
                          .Attr<int64_t>("row_bytes"));
