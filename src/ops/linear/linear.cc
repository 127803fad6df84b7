// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/linear/linear.h"

#include <limits>

#include "ops/grouped_gemm/grouped_gemm.h"

namespace anabranch {
namespace {

// A matrix as a stack of one; anything else stays as it is and is refused by the grouped product.
template <bool kConst>
BasicTensorView<kConst> Stack(const BasicTensorView<kConst>& w) {
  if (w.rank() != 2) return {};
  return {w.data(), w.dtype(), {1, w.size(0), w.size(1)}};
}

// The one group size, kept where the view points.
struct AllRows {
  explicit AllRows(const ConstTensorView& rows) : size(static_cast<int32_t>(rows.size(0))) {}
  ConstTensorView view() const { return {&size, {1}}; }
  const int32_t size;
};

Status CheckRows(const ConstTensorView& rows) {
  if (rows.size(0) <= std::numeric_limits<int32_t>::max()) return Status::Ok();
  return InvalidArgument("linear: ", rows.ToString(), " has more than 2^31 - 1 rows");
}

}  // namespace

int64_t LinearScratchBytes(const LinearArgs& args, int num_workers) {
  return GroupedGemmScratchBytes({args.x, Stack(args.w), {}, args.y}, num_workers);
}

Status Linear(const LinearArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(CheckRows(args.x));
  const AllRows all_rows(args.x);
  return GroupedGemm({args.x, Stack(args.w), all_rows.view(), args.y}, context);
}

int64_t LinearDgradScratchBytes(const LinearDgradArgs& args, int num_workers) {
  return GroupedGemmDgradScratchBytes({args.dy, Stack(args.w), {}, args.dx}, num_workers);
}

Status LinearDgrad(const LinearDgradArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(CheckRows(args.dy));
  const AllRows all_rows(args.dy);
  return GroupedGemmDgrad({args.dy, Stack(args.w), all_rows.view(), args.dx}, context);
}

int64_t LinearWgradScratchBytes(const LinearWgradArgs& args, int num_workers) {
  return GroupedGemmWgradScratchBytes({args.x, args.dy, {}, Stack(args.dw), args.num_leaves},
                                      num_workers);
}

Status LinearWgrad(const LinearWgradArgs& args, const Context& context) {
  ANABRANCH_RETURN_IF_ERROR(CheckRows(args.x));
  const AllRows all_rows(args.x);
  return GroupedGemmWgrad({args.x, args.dy, all_rows.view(), Stack(args.dw), args.num_leaves},
                          context);
}

}  // namespace anabranch
