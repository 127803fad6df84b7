// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The experts of one rank over rows that dispatch has brought: MoeFfn with one slot a row. Buffers
// have room for the worst case; the views end with the rows in use, so that the rest is not
// touched.
#include <type_traits>

#include "ffi/ffi_support.h"
#include "ffi/moe_ffn_run.h"
#include "ffi/timeline.h"
#include "ops/moe_ffn/moe_ffn.h"

namespace anabranch::ffi {
namespace {

using xffi::AnyBuffer;
using Output = xffi::Result<AnyBuffer>;

// The rows in use, or an error when the offsets exceed the room for them.
Status UsedRows(const ConstTensorView& group_offsets, const ConstTensorView& x,
                const ConstTensorView& identity, int64_t* used) {
  if (group_offsets.rank() != 1 || group_offsets.dtype() != DType::kI32 || x.rank() != 2 ||
      !identity.HasShape({x.size(0)})) {
    return InvalidArgument("moe_ffn_rows: group_offsets is ", group_offsets.ToString(), ", x ",
                           x.ToString(), ", identity ", identity.ToString(),
                           "; must be i32[L+1], [C,H], i32[C]");
  }
  *used = group_offsets.as<int32_t>()[group_offsets.size(0) - 1];
  if (*used < 0 || *used > x.size(0)) {
    return OutOfRange("moe_ffn_rows: group_offsets ends with ", *used, "; must be in [0, ",
                      x.size(0), "]");
  }
  return Status::Ok();
}

// The first `rows` rows of a view of rank 1 or 2. Rank 1 becomes [rows, 1] when column is set.
template <typename AnyView>
AnyView First(const AnyView& view, int64_t rows, bool column = false) {
  if (view.num_elements() == 0) return view;
  if (view.rank() == 2) return AnyView(view.data(), view.dtype(), {rows, view.size(1)});
  if (column) return AnyView(view.data(), view.dtype(), {rows, 1});
  return AnyView(view.data(), view.dtype(), {rows});
}

// Of the L experts in *view [L,...] those that rows are for: `count` of them from `first` on.
template <typename AnyView>
Status Select(const char* name, int64_t first, int64_t count, AnyView* view) {
  if (view->rank() != 3 || first < 0 || count < 0 || first + count > view->size(0)) {
    return InvalidArgument("moe_ffn_rows: ", name, " is ", view->ToString(),
                           "; must be [L,.,.] with L at least ", first + count);
  }
  const int64_t bytes = view->size(1) * view->size(2) * SizeOf(view->dtype());
  auto* const data = view->template as<char>();
  *view = AnyView(data + first * bytes, view->dtype(), {count, view->size(1), view->size(2)});
  return Status::Ok();
}

template <typename Args>
Status Run(xffi::ThreadPool pool, int64_t activation, int64_t first_expert, AnyBuffer identity,
           Args args, int64_t (*scratch_bytes)(const Args&, int),
           Status (*run)(const Args&, Context&)) {
  const bool forward = std::is_same_v<Args, MoeFfnArgs>;
  const ScopedSpan span(Track::kProducts, forward ? "moe_ffn_rows" : "moe_ffn_rows_grad",
                        first_expert);
  ANABRANCH_RETURN_IF_ERROR(ToActivation("moe_ffn_rows", activation, &args.activation));
  int64_t used = 0;
  const ConstTensorView rows = View(identity);
  ANABRANCH_RETURN_IF_ERROR(UsedRows(args.group_offsets, args.x, rows, &used));
  args.x = First(args.x, used);
  args.weights = First(args.weights, used, true);
  args.row_token = First(rows, used);
  args.slot_row = First(rows, used, true);
  args.gate_up = First(args.gate_up, used);
  const int64_t experts = args.group_offsets.size(0) - 1;
  ANABRANCH_RETURN_IF_ERROR(Select("w_gate", first_expert, experts, &args.w_gate));
  ANABRANCH_RETURN_IF_ERROR(Select("w_up", first_expert, experts, &args.w_up));
  ANABRANCH_RETURN_IF_ERROR(Select("w_down", first_expert, experts, &args.w_down));
  if constexpr (std::is_same_v<Args, MoeFfnArgs>) {
    args.y = First(args.y, used);
  } else {
    args.y_grad = First(args.y_grad, used);
    args.x_grad = First(args.x_grad, used);
    args.weights_grad = First(args.weights_grad, used, true);
    ANABRANCH_RETURN_IF_ERROR(Select("w_gate_grad", first_expert, experts, &args.w_gate_grad));
    ANABRANCH_RETURN_IF_ERROR(Select("w_up_grad", first_expert, experts, &args.w_up_grad));
    ANABRANCH_RETURN_IF_ERROR(Select("w_down_grad", first_expert, experts, &args.w_down_grad));
  }
  return RunWithScratch("moe_ffn_rows", pool, args, scratch_bytes, run);
}

xffi::Error RowsHandler(xffi::ThreadPool pool, AnyBuffer x, AnyBuffer weights, AnyBuffer w_gate,
                        AnyBuffer w_up, AnyBuffer w_down, AnyBuffer group_offsets,
                        AnyBuffer identity, Output y, Output gate_up, int64_t activation,
                        int64_t first_expert) {
  const MoeFfnArgs args = {.x = View(x),
                           .weights = View(weights),
                           .w_gate = View(w_gate),
                           .w_up = View(w_up),
                           .w_down = View(w_down),
                           .group_offsets = View(group_offsets),
                           .row_token = {},
                           .slot_row = {},
                           .y = View(y),
                           .gate_up = View(gate_up)};
  return ToError(Run(pool, activation, first_expert, identity, args, MoeFfnScratchBytes, MoeFfn));
}

// before: nothing, or the gradients of other experts, in whose memory the results are.
xffi::Error RowsGradHandler(xffi::ThreadPool pool, AnyBuffer x, AnyBuffer weights, AnyBuffer w_gate,
                            AnyBuffer w_up, AnyBuffer w_down, AnyBuffer group_offsets,
                            AnyBuffer identity, AnyBuffer saved, AnyBuffer y_grad,
                            xffi::RemainingArgs /*before*/, Output x_grad, Output weights_grad,
                            Output w_gate_grad, Output w_up_grad, Output w_down_grad,
                            Output gate_up, int64_t activation, int64_t first_expert) {
  const Status shared = CheckShared("moe_ffn_rows_grad", saved, gate_up);
  if (!shared.ok()) return ToError(shared);
  const MoeFfnGradArgs args = {.x = View(x),
                               .weights = View(weights),
                               .w_gate = View(w_gate),
                               .w_up = View(w_up),
                               .w_down = View(w_down),
                               .group_offsets = View(group_offsets),
                               .row_token = {},
                               .slot_row = {},
                               .gate_up = View(gate_up),
                               .y_grad = View(y_grad),
                               .x_grad = View(x_grad),
                               .weights_grad = View(weights_grad),
                               .w_gate_grad = View(w_gate_grad),
                               .w_up_grad = View(w_up_grad),
                               .w_down_grad = View(w_down_grad)};
  return ToError(
      Run(pool, activation, first_expert, identity, args, MoeFfnGradScratchBytes, MoeFfnGrad));
}

}  // namespace
}  // namespace anabranch::ffi

using anabranch::ffi::AnyBuffer;

ANABRANCH_FFI_HANDLER(anabranch_moe_ffn_rows, anabranch::ffi::RowsHandler,
                      xla::ffi::Ffi::Bind()
                          .Ctx<xla::ffi::ThreadPool>()
                          .Arg<AnyBuffer>()  // x [C,H]
                          .Arg<AnyBuffer>()  // row_weights [C]
                          .Arg<AnyBuffer>()  // w_gate [L,H,F]
                          .Arg<AnyBuffer>()  // w_up [L,H,F]
                          .Arg<AnyBuffer>()  // w_down [L,F,H]
                          .Arg<AnyBuffer>()  // group_offsets [L+1]
                          .Arg<AnyBuffer>()  // identity [C]
                          .Ret<AnyBuffer>()  // y [C,H]
                          .Ret<AnyBuffer>()  // gate_up [C,2F'], or [0,2F']: not saved
                          .Attr<int64_t>("activation")
                          .Attr<int64_t>("first_expert"));
ANABRANCH_FFI_HANDLER(anabranch_moe_ffn_rows_grad, anabranch::ffi::RowsGradHandler,
                      xla::ffi::Ffi::Bind()
                          .Ctx<xla::ffi::ThreadPool>()
                          .Arg<AnyBuffer>()  // x [C,H]
                          .Arg<AnyBuffer>()  // row_weights [C]
                          .Arg<AnyBuffer>()  // w_gate [L,H,F]
                          .Arg<AnyBuffer>()  // w_up [L,H,F]
                          .Arg<AnyBuffer>()  // w_down [L,F,H]
                          .Arg<AnyBuffer>()  // group_offsets [L+1]
                          .Arg<AnyBuffer>()  // identity [C]
                          .Arg<AnyBuffer>()  // gate_up [C,2F'], aliased with the result
                          .Arg<AnyBuffer>()  // y_grad [C,H]
                          .RemainingArgs()   // gradients of the weights so far, or none
                          .Ret<AnyBuffer>()  // x_grad [C,H]
                          .Ret<AnyBuffer>()  // row_weights_grad [C]
                          .Ret<AnyBuffer>()  // w_gate_grad [L,H,F]
                          .Ret<AnyBuffer>()  // w_up_grad [L,H,F]
                          .Ret<AnyBuffer>()  // w_down_grad [L,F,H]
                          .Ret<AnyBuffer>()  // what gate_up's memory holds then
                          .Attr<int64_t>("activation")
                          .Attr<int64_t>("first_expert"));
