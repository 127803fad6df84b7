// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/grouped_gemm/arguments.h"

namespace anabranch {
namespace {

// One argument of an operation, as messages name it.
struct Argument {
  const char* op;
  const char* name;
  ConstTensorView view;
};

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

Status CheckFloat(const Argument& argument, int rank) {
  if (argument.view.rank() == rank && IsFloat(argument.view.dtype())) return Status::Ok();
  return InvalidArgument(argument.op, ": ", argument.name, " is ", argument.view.ToString(),
                         "; must be bf16 or f32 of rank ", rank);
}

// Sizes along an axis that two arguments share.
Status CheckSameSize(const Argument& a, int a_axis, const Argument& b, int b_axis) {
  if (a.view.size(a_axis) == b.view.size(b_axis)) return Status::Ok();
  return InvalidArgument(a.op, ": ", a.name, " is ", a.view.ToString(), " and ", b.name, " is ",
                         b.view.ToString(), "; axis ", a_axis, " of ", a.name, " and axis ", b_axis,
                         " of ", b.name, " must have the same size");
}

Status CheckGroupSizes(const Argument& sizes, int64_t num_groups, GroupedGemmProblem* problem) {
  if (sizes.view.rank() != 1 || sizes.view.dtype() != DType::kI32 ||
      sizes.view.size(0) != num_groups) {
    return InvalidArgument(sizes.op, ": ", sizes.name, " is ", sizes.view.ToString(),
                           "; must be i32[", num_groups, "]");
  }
  const int32_t* values = sizes.view.as<int32_t>();
  int64_t sum = 0;
  for (int64_t g = 0; g < num_groups; ++g) {
    if (values[g] < 0) {
      return OutOfRange(sizes.op, ": ", sizes.name, "[", g, "]=", values[g],
                        " is negative; group sizes must be >= 0");
    }
    sum += values[g];
  }
  if (sum > problem->num_rows) {
    return OutOfRange(sizes.op, ": ", sizes.name, " add up to ", sum, " but there are ",
                      problem->num_rows, " rows; the sum must not exceed the rows");
  }
  problem->num_groups = num_groups;
  problem->group_sizes = values;
  problem->num_used_rows = sum;
  return Status::Ok();
}

// Rows [M, n] and a weight: the same type, or bf16 rows with an f32 weight.
Status CheckRowsAndWeight(const Argument& rows, const Argument& w) {
  ANABRANCH_RETURN_IF_ERROR(CheckFloat(rows, 2));
  ANABRANCH_RETURN_IF_ERROR(CheckFloat(w, 3));
  if (rows.view.dtype() == DType::kF32 && w.view.dtype() == DType::kBF16) {
    return InvalidArgument(rows.op, ": ", rows.name, " is ", rows.view.ToString(), " and ", w.name,
                           " is ", w.view.ToString(),
                           "; types must be equal, or bf16 rows with an f32 weight");
  }
  return Status::Ok();
}

// Codes and scales of a weight, and rows that can meet them.
Status CheckCoding(const Argument& rows, const Argument& w, const WeightCoding& coding) {
  const DType codes = w.view.dtype(), element = FactsOf(coding.format).element.dtype;
  if (w.view.rank() != 3 || (codes != DType::kU8 && codes != element)) {
    return InvalidArgument(w.op, ": ", w.name, " is ", w.view.ToString(), "; must be u8 or ",
                           Name(element), " of rank 3");
  }
  if (rows.view.rank() != 2 || rows.view.dtype() != DType::kBF16) {
    return InvalidArgument(rows.op, ": ", rows.name, " is ", rows.view.ToString(),
                           "; must be bf16 of rank 2");
  }
  const ScaleKind kind = FactsOf(coding.format).scale;
  const DType type = kind == ScaleKind::kE8m0   ? DType::kE8M0
                     : kind == ScaleKind::kE4m3 ? DType::kE4M3
                                                : DType::kF32;
  const BlockShape block = BlockShapeOf(coding);
  const int64_t scale_rows = w.view.size(0) * CeilDiv(w.view.size(1), block.rows);
  const int64_t scale_columns = CeilDiv(w.view.size(2), block.columns);
  if (coding.scale.dtype() == type && coding.scale.HasShape({scale_rows, scale_columns})) {
    return Status::Ok();
  }
  return InvalidArgument(w.op, ": scale is ", coding.scale.ToString(), "; must be ", Name(type),
                         "[", scale_rows, ",", scale_columns, "] for ", w.name, " ",
                         w.view.ToString());
}

// out [M, .] = rows [M, .] times w [E, K, N], summed along axis `summed` of w, 1 or 2. coding is
// null for plain weights.
Status CheckProduct(const Argument& rows, const Argument& w, const Argument& out, int summed,
                    const WeightCoding* coding, const ConstTensorView& group_sizes,
                    GroupedGemmProblem* problem) {
  ANABRANCH_RETURN_IF_ERROR(coding == nullptr ? CheckRowsAndWeight(rows, w)
                                              : CheckCoding(rows, w, *coding));
  ANABRANCH_RETURN_IF_ERROR(CheckSameSize(rows, 1, w, summed));
  ANABRANCH_RETURN_IF_ERROR(CheckFloat(out, 2));
  ANABRANCH_RETURN_IF_ERROR(CheckSameSize(out, 0, rows, 0));
  ANABRANCH_RETURN_IF_ERROR(CheckSameSize(out, 1, w, 3 - summed));
  *problem = {rows.view.size(0), 0, w.view.size(1), w.view.size(2), rows.view.dtype(), nullptr, 0};
  return CheckGroupSizes({rows.op, "group_sizes", group_sizes}, w.view.size(0), problem);
}

Status ValidateProduct(const char* op, const GroupedGemmArgs& args, const WeightCoding* coding,
                       GroupedGemmProblem* problem) {
  return CheckProduct({op, "x", args.x}, {op, "w", args.w}, {op, "y", args.y}, 1, coding,
                      args.group_sizes, problem);
}

Status ValidateDgrad(const char* op, const GroupedGemmDgradArgs& args, const WeightCoding* coding,
                     GroupedGemmProblem* problem) {
  return CheckProduct({op, "dy", args.dy}, {op, "w", args.w}, {op, "dx", args.dx}, 2, coding,
                      args.group_sizes, problem);
}

}  // namespace

BlockShape BlockShapeOf(const WeightCoding& coding) {
  const FormatFacts facts = FactsOf(coding.format);
  return {facts.square || coding.axis == 0 ? facts.block : 1,
          facts.square || coding.axis == 1 ? facts.block : 1};
}

Status Validate(const GroupedGemmArgs& args, GroupedGemmProblem* problem) {
  return ValidateProduct("grouped_gemm", args, nullptr, problem);
}

Status Validate(const GroupedGemmDgradArgs& args, GroupedGemmProblem* problem) {
  return ValidateDgrad("grouped_gemm_dgrad", args, nullptr, problem);
}

Status Validate(const GroupedGemmCodedArgs& args, GroupedGemmProblem* problem) {
  return ValidateProduct("grouped_gemm_coded", args.product, &args.coding, problem);
}

Status Validate(const GroupedGemmDgradCodedArgs& args, GroupedGemmProblem* problem) {
  return ValidateDgrad("grouped_gemm_dgrad_coded", args.product, &args.coding, problem);
}

Status Validate(const GroupedGemmWgradArgs& args, GroupedGemmProblem* problem) {
  constexpr const char* kOp = "grouped_gemm_wgrad";
  const Argument x{kOp, "x", args.x};
  const Argument dy{kOp, "dy", args.dy};
  const Argument dw{kOp, "dw", args.dw};
  ANABRANCH_RETURN_IF_ERROR(CheckFloat(x, 2));
  ANABRANCH_RETURN_IF_ERROR(CheckFloat(dy, 2));
  ANABRANCH_RETURN_IF_ERROR(CheckFloat(dw, 3));
  if (x.view.dtype() != dy.view.dtype()) {
    return InvalidArgument(kOp, ": x is ", x.view.ToString(), " and dy is ", dy.view.ToString(),
                           "; types must be equal");
  }
  ANABRANCH_RETURN_IF_ERROR(CheckSameSize(x, 0, dy, 0));
  ANABRANCH_RETURN_IF_ERROR(CheckSameSize(dw, 1, x, 1));
  ANABRANCH_RETURN_IF_ERROR(CheckSameSize(dw, 2, dy, 1));
  *problem = {x.view.size(0), 0, x.view.size(1), dy.view.size(1), x.view.dtype(), nullptr, 0};
  return CheckGroupSizes({kOp, "group_sizes", args.group_sizes}, dw.view.size(0), problem);
}

Status CheckScratch(const char* op, const Context& context, int64_t needed_bytes) {
  if (context.scratch_bytes >= needed_bytes) return Status::Ok();
  return MakeStatus(StatusCode::kResourceExhausted, op, ": scratch has ", context.scratch_bytes,
                    " bytes; needs ", needed_bytes);
}

}  // namespace anabranch
