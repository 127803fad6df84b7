// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/moe_ffn/layout.h"

#include <algorithm>
#include <cstring>

namespace anabranch::moe_ffn {
namespace {

std::string ShapeText(std::initializer_list<int64_t> shape) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "[" : ",") + std::to_string(size);
  return text + "]";
}

Status CheckPlan(const CommonArgs& args, Sizes* sizes) {
  const int32_t* offsets = args.group_offsets.as<int32_t>();
  for (int64_t e = 0; e <= sizes->experts; ++e) {
    const int64_t low = e == 0 ? 0 : offsets[e - 1];
    if (offsets[e] < low || offsets[e] > sizes->capacity || (e == 0 && offsets[0] != 0)) {
      return OutOfRange("moe_ffn: group_offsets[", e, "]=", offsets[e],
                        "; offsets start at 0, do not decrease and do not pass the ",
                        sizes->capacity, " rows");
    }
  }
  sizes->rows = offsets[sizes->experts];
  const int32_t* tokens = args.row_token.as<int32_t>();
  for (int64_t row = 0; row < sizes->rows; ++row) {
    if (tokens[row] < 0 || tokens[row] >= sizes->tokens) {
      return OutOfRange("moe_ffn: row_token[", row, "]=", tokens[row], "; must be in [0, ",
                        sizes->tokens, ")");
    }
  }
  // Every row must belong to exactly one slot: then slots and rows pair up.
  int64_t routed = 0;
  const int32_t* slots = args.slot_row.as<int32_t>();
  for (int64_t slot = 0; slot < sizes->tokens * sizes->k; ++slot) {
    const int32_t row = slots[slot];
    if (row < 0) continue;
    if (row >= sizes->rows || tokens[row] != slot / sizes->k) {
      return OutOfRange("moe_ffn: slot_row[", slot / sizes->k, ",", slot % sizes->k, "]=", row,
                        "; must be -1 or a row of token ", slot / sizes->k);
    }
    ++routed;
  }
  if (routed != sizes->rows) {
    return OutOfRange("moe_ffn: slot_row names ", routed, " rows but group_offsets counts ",
                      sizes->rows, "; they must agree");
  }
  return Status::Ok();
}

}  // namespace

Status CheckView(const char* name, const ConstTensorView& view, DType dtype,
                 std::initializer_list<int64_t> shape) {
  if (view.has_value() && view.dtype() == dtype && view.HasShape(shape)) return Status::Ok();
  return InvalidArgument("moe_ffn: ", name, " is ", view.ToString(), "; must be ",
                         anabranch::Name(dtype), ShapeText(shape));
}

Status CheckPacking(const ConstTensorView& x) {
  if (x.dtype() == DType::kBF16) return Status::Ok();
  return InvalidArgument("moe_ffn: x is ", x.ToString(), "; must be bf16 with packed experts");
}

Status Validate(const CommonArgs& args, Sizes* sizes) {
  if (args.x.rank() != 2 || args.w_gate.rank() != 3 || args.slot_row.rank() != 2 ||
      args.row_token.rank() != 1) {
    return InvalidArgument("moe_ffn: x is ", args.x.ToString(), ", w_gate ", args.w_gate.ToString(),
                           ", slot_row ", args.slot_row.ToString(), ", row_token ",
                           args.row_token.ToString(), "; ranks must be 2, 3, 2, 1");
  }
  CommonArgs a = args;
  *sizes = SizesOf(a);
  const Sizes& s = *sizes;
  const bool mixed = s.type == DType::kBF16 && s.weight_type == DType::kF32;
  if (s.type == DType::kI32 || (s.weight_type != s.type && !mixed)) {
    return InvalidArgument("moe_ffn: x is ", args.x.ToString(), " and w_gate ",
                           args.w_gate.ToString(),
                           "; types must be equal, or bf16 rows with f32 weights");
  }
  ANABRANCH_RETURN_IF_ERROR(CheckView("x", args.x, s.type, {s.tokens, s.hidden}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("w_gate", args.w_gate, s.weight_type, {s.experts, s.hidden, s.width}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("w_up", args.w_up, s.weight_type, {s.experts, s.hidden, s.width}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("w_down", args.w_down, s.weight_type, {s.experts, s.width, s.hidden}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("weights", args.weights, DType::kF32, {s.tokens, s.k}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("slot_row", args.slot_row, DType::kI32, {s.tokens, s.k}));
  ANABRANCH_RETURN_IF_ERROR(CheckView("row_token", args.row_token, DType::kI32, {s.capacity}));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView("group_offsets", args.group_offsets, DType::kI32, {s.experts + 1}));
  return CheckPlan(args, sizes);
}

Rows TakeRows(const CommonArgs& args, const Sizes& sizes, ScratchArena* arena) {
  Rows rows;
  rows.offsets = args.group_offsets.as<int32_t>();
  rows.token = args.row_token.as<int32_t>();
  rows.slot = arena->Take<int32_t>(sizes.capacity);
  rows.weight = arena->Take<float>(sizes.capacity);
  rows.expert_order = arena->Take<int32_t>(sizes.experts);
  return rows;
}

void FillRows(const CommonArgs& args, const Sizes& sizes, const Rows& rows) {
  for (int64_t slot = 0; slot < sizes.tokens * sizes.k; ++slot) {
    const int32_t row = args.slot_row.as<int32_t>()[slot];
    if (row < 0) continue;
    rows.slot[row] = static_cast<int32_t>(slot);
    rows.weight[row] = args.weights.as<float>()[slot];
  }
  const auto count = [&rows](int32_t e) { return rows.offsets[e + 1] - rows.offsets[e]; };
  for (int64_t e = 0; e < sizes.experts; ++e) rows.expert_order[e] = static_cast<int32_t>(e);
  std::sort(rows.expert_order, rows.expert_order + sizes.experts, [&](int32_t a, int32_t b) {
    return count(a) != count(b) ? count(a) > count(b) : a < b;
  });
}

void PointToTokens(const void* matrix, int64_t pitch_bytes, const Sizes& sizes, const Rows& rows,
                   const void** pointers) {
  for (int64_t row = 0; row < sizes.rows; ++row) {
    pointers[row] = static_cast<const char*>(matrix) + rows.token[row] * pitch_bytes;
  }
}

void PointToRows(const void* matrix, int64_t pitch_bytes, const Sizes& sizes,
                 const void** pointers) {
  for (int64_t row = 0; row < sizes.rows; ++row) {
    pointers[row] = static_cast<const char*>(matrix) + row * pitch_bytes;
  }
}

int64_t PaddedElements(const Sizes& sizes) {
  return sizes.padded_hidden == sizes.hidden ? 0 : sizes.tokens * sizes.padded_hidden;
}

const void* WholeWords(const ConstTensorView& matrix, const Sizes& sizes, void* padded) {
  if (sizes.padded_hidden == sizes.hidden) return matrix.data();
  const BF16* from = matrix.as<BF16>();
  BF16* to = static_cast<BF16*>(padded);
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    std::memcpy(to, from, sizes.hidden * sizeof(BF16));
    to[sizes.hidden] = BF16{};
    from += sizes.hidden;
    to += sizes.padded_hidden;
  }
  return padded;
}

int64_t MakeUnits(const Sizes& sizes, const Rows& rows, int64_t panels, Unit* units) {
  int64_t count = 0;
  for (int64_t i = 0; i < sizes.experts; ++i) {
    const int32_t expert = rows.expert_order[i];
    const int64_t begin = rows.offsets[expert], end = rows.offsets[expert + 1];
    const int64_t blocks = CeilDiv(end - begin, kUnitRows);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t first = begin + (end - begin) * block / blocks;
      const int64_t last = begin + (end - begin) * (block + 1) / blocks;
      for (int64_t panel = 0; panel < panels; ++panel) {
        units[count++] = {first, last - first, expert, static_cast<int32_t>(panel)};
      }
    }
  }
  return count;
}

}  // namespace anabranch::moe_ffn
