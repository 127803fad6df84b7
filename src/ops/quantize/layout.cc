// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Where groups lie, and the rules that arguments must keep.
#include "ops/quantize/layout.h"

#include "base/context.h"

namespace anabranch::quantize {
namespace {

bool IsFloat(const ConstTensorView& view) {
  return view.dtype() == DType::kF32 || view.dtype() == DType::kBF16;
}

DType ScaleDType(ScaleKind kind) {
  return kind == ScaleKind::kE8m0   ? DType::kE8M0
         : kind == ScaleKind::kE4m3 ? DType::kE4M3
                                    : DType::kF32;
}

}  // namespace

Status PlanGroups(const char* op, const ConstTensorView& group_sizes, int64_t num_rows,
                  int64_t data_rows, int64_t row_alignment, int64_t block_rows, GroupSpan* spans) {
  const int64_t num_groups = NumGroups(group_sizes);
  GroupSpan next = {};
  for (int64_t group = 0; group < num_groups; ++group) {
    const int64_t size = group_sizes.has_value() ? group_sizes.as<int32_t>()[group] : num_rows;
    if (size < 0) {
      return OutOfRange(op, ": group_sizes[", group, "]=", size, " is negative; must be >= 0");
    }
    next.rows = size;
    spans[group] = next;
    const int64_t aligned = RoundUp(size, row_alignment);
    next.first_row += size;
    next.data_row += aligned;
    next.scale_row += CeilDiv(aligned, block_rows);
  }
  next.rows = 0;
  spans[num_groups] = next;
  if (next.first_row > num_rows) {
    return OutOfRange(op, ": group_sizes add up to ", next.first_row, "; x has ", num_rows,
                      " rows");
  }
  if (next.data_row > data_rows) {
    return OutOfRange(op, ": groups aligned to ", row_alignment, " rows need ", next.data_row,
                      " rows; data has ", data_rows);
  }
  return Status::Ok();
}

Status CheckOptions(const char* op, const QuantizeOptions& options) {
  if (options.axis != 0 && options.axis != 1) {
    return InvalidArgument(op, ": axis=", options.axis, "; must be 0 or 1");
  }
  if (options.row_alignment < 1) {
    return InvalidArgument(op, ": row_alignment=", options.row_alignment, "; must be >= 1");
  }
  const ScaleKind kind = FactsOf(options.format).scale;
  if (options.scale_mode == ScaleMode::kFloat32 && kind != ScaleKind::kF32) {
    return InvalidArgument(op, ": scale_mode float32 belongs to the fp8_block formats");
  }
  if (options.scale_mode != ScaleMode::kRceil && kind == ScaleKind::kE4m3) {
    return InvalidArgument(op, ": nvfp4 has no scale_mode; must be rceil, its default");
  }
  return Status::Ok();
}

Status CheckSource(const char* op, const ConstTensorView& x, const ConstTensorView& group_sizes) {
  if (x.rank() != 2 || !IsFloat(x)) {
    return InvalidArgument(op, ": x is ", x.ToString(), "; must be f32 or bf16 [M, N]");
  }
  if (group_sizes.has_value() && (group_sizes.rank() != 1 || group_sizes.dtype() != DType::kI32)) {
    return InvalidArgument(op, ": group_sizes is ", group_sizes.ToString(), "; must be i32 [G]");
  }
  return Status::Ok();
}

Status CheckKey(const char* op, const QuantizeOptions& options, const ConstTensorView& key) {
  if (!options.stochastic || (key.dtype() == DType::kI32 && key.HasShape({4}))) {
    return Status::Ok();
  }
  return InvalidArgument(op, ": key is ", key.ToString(),
                         "; stochastic rounding needs i32 [4]: key words, first row, first group");
}

Status CheckCodes(const char* op, const QuantizeOptions& options, const ConstTensorView& data,
                  const ConstTensorView& scale) {
  const FormatFacts facts = FactsOf(options.format);
  const bool bytes = data.dtype() == DType::kU8 || data.dtype() == facts.element.dtype;
  if (data.rank() != 2 || !bytes) {
    return InvalidArgument(op, ": data is ", data.ToString(), "; must be ",
                           Name(facts.element.dtype), " or u8 [P, N]");
  }
  const int64_t columns = CeilDiv(data.size(1), BlockColumns(options));
  const bool shaped = scale.rank() == 2 && scale.size(1) == columns &&
                      (BlockRows(options) > 1 || scale.size(0) == data.size(0));
  if (!shaped || scale.dtype() != ScaleDType(facts.scale)) {
    return InvalidArgument(op, ": scale is ", scale.ToString(), " and data ", data.ToString(),
                           "; scale must be ", Name(ScaleDType(facts.scale)), " [rows, ", columns,
                           "]");
  }
  return Status::Ok();
}

Status CheckTensorScale(const char* op, const ConstTensorView& tensor_scale, int64_t num_groups) {
  if (tensor_scale.dtype() == DType::kF32 && tensor_scale.HasShape({num_groups})) {
    return Status::Ok();
  }
  return InvalidArgument(op, ": tensor_scale is ", tensor_scale.ToString(), "; must be f32 [",
                         num_groups, "]");
}

Status CheckStatistics(const char* op, const ConstTensorView& statistics) {
  if (!statistics.has_value() ||
      (statistics.dtype() == DType::kF32 && statistics.num_elements() == kQuantizeStatistics)) {
    return Status::Ok();
  }
  return InvalidArgument(op, ": statistics is ", statistics.ToString(), "; must be f32 [",
                         kQuantizeStatistics, "]");
}

Status CheckScaleRows(const char* op, const ConstTensorView& scale, const GroupSpan& end) {
  if (end.scale_row <= scale.size(0)) return Status::Ok();
  return OutOfRange(op, ": groups need ", end.scale_row, " rows of scales; scale is ",
                    scale.ToString());
}

Status Check(const QuantizeArgs& args) {
  constexpr const char* kOp = "quantize";
  ANABRANCH_RETURN_IF_ERROR(CheckOptions(kOp, args.options));
  ANABRANCH_RETURN_IF_ERROR(CheckSource(kOp, args.x, args.group_sizes));
  ANABRANCH_RETURN_IF_ERROR(CheckKey(kOp, args.options, args.key));
  ANABRANCH_RETURN_IF_ERROR(CheckCodes(kOp, args.options, args.data, args.scale));
  if (args.data.size(1) != args.x.size(1)) {
    return InvalidArgument(kOp, ": data is ", args.data.ToString(), " and x ", args.x.ToString(),
                           "; they must have the same columns");
  }
  const int64_t num_groups = NumGroups(args.group_sizes);
  ANABRANCH_RETURN_IF_ERROR(CheckTensorScale(kOp, args.tensor_scale, num_groups));
  if (args.group_offsets.dtype() != DType::kI32 || !args.group_offsets.HasShape({num_groups + 1})) {
    return InvalidArgument(kOp, ": group_offsets is ", args.group_offsets.ToString(),
                           "; must be i32 [", num_groups + 1, "]");
  }
  return CheckStatistics(kOp, args.statistics);
}

Status Check(const DequantizeArgs& args) {
  constexpr const char* kOp = "dequantize";
  ANABRANCH_RETURN_IF_ERROR(CheckOptions(kOp, args.options));
  ANABRANCH_RETURN_IF_ERROR(CheckSource(kOp, args.out, args.group_sizes));
  ANABRANCH_RETURN_IF_ERROR(CheckCodes(kOp, args.options, args.data, args.scale));
  ANABRANCH_RETURN_IF_ERROR(CheckTensorScale(kOp, args.tensor_scale, NumGroups(args.group_sizes)));
  if (args.data.size(1) == args.out.size(1)) return Status::Ok();
  return InvalidArgument(kOp, ": data is ", args.data.ToString(), " and out ", args.out.ToString(),
                         "; they must have the same columns");
}

Status Check(const QuantizeDequantizeArgs& args) {
  constexpr const char* kOp = "quantize_dequantize";
  ANABRANCH_RETURN_IF_ERROR(CheckOptions(kOp, args.options));
  ANABRANCH_RETURN_IF_ERROR(CheckSource(kOp, args.x, args.group_sizes));
  ANABRANCH_RETURN_IF_ERROR(CheckKey(kOp, args.options, args.key));
  ANABRANCH_RETURN_IF_ERROR(CheckTensorScale(kOp, args.tensor_scale, NumGroups(args.group_sizes)));
  if (args.options.row_alignment != 1) {
    return InvalidArgument(kOp, ": row_alignment=", args.options.row_alignment, "; must be 1");
  }
  if (!IsFloat(args.out) || !args.out.HasShape({args.x.size(0), args.x.size(1)})) {
    return InvalidArgument(kOp, ": out is ", args.out.ToString(), " and x ", args.x.ToString(),
                           "; out must be f32 or bf16 of x's shape");
  }
  const int64_t num_groups = NumGroups(args.group_sizes);
  if (args.amax.has_value() &&
      (args.amax.dtype() != DType::kF32 || !args.amax.HasShape({num_groups}))) {
    return InvalidArgument(kOp, ": amax is ", args.amax.ToString(), "; must be f32 [", num_groups,
                           "]");
  }
  return CheckStatistics(kOp, args.statistics);
}

Status Check(const QuantizeDequantizeBothArgs& args) {
  constexpr const char* kOp = "quantize_dequantize_both";
  const TensorView& out = args.one.out;
  ANABRANCH_RETURN_IF_ERROR(Check(args.one));
  ANABRANCH_RETURN_IF_ERROR(CheckStatistics(kOp, args.other_statistics));
  if (args.one.options.stochastic) {
    return InvalidArgument(kOp, ": both copies would round by the same draws; must be to nearest");
  }
  if (args.other_out.dtype() != out.dtype() ||
      !args.other_out.HasShape({out.size(0), out.size(1)})) {
    return InvalidArgument(kOp, ": other_out is ", args.other_out.ToString(), " and out ",
                           out.ToString(), "; they must be alike");
  }
  if (args.one.statistics.has_value() == args.other_statistics.has_value()) return Status::Ok();
  return InvalidArgument(kOp, ": statistics must be of both copies or of none");
}

Status Check(const TensorAmaxArgs& args) {
  constexpr const char* kOp = "tensor_amax";
  ANABRANCH_RETURN_IF_ERROR(CheckSource(kOp, args.x, args.group_sizes));
  const int64_t num_groups = NumGroups(args.group_sizes);
  if (args.amax.dtype() == DType::kF32 && args.amax.HasShape({num_groups})) return Status::Ok();
  return InvalidArgument(kOp, ": amax is ", args.amax.ToString(), "; must be f32 [", num_groups,
                         "]");
}

Status Check(const RandomHadamardArgs& args) {
  constexpr const char* kOp = "random_hadamard";
  ANABRANCH_RETURN_IF_ERROR(CheckSource(kOp, args.x, args.group_sizes));
  if (args.row_alignment < 16 || args.row_alignment % 16 != 0) {
    return InvalidArgument(kOp, ": row_alignment=", args.row_alignment,
                           "; must be a multiple of 16");
  }
  if (args.out.rank() != 2 || args.out.dtype() != DType::kBF16 ||
      args.out.size(1) != args.x.size(1)) {
    return InvalidArgument(kOp, ": out is ", args.out.ToString(), " and x ", args.x.ToString(),
                           "; out must be bf16 [P, N]");
  }
  return Status::Ok();
}

}  // namespace anabranch::quantize
