// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/ragged_plan/rows.h"

#include <algorithm>
#include <cstring>

#include "ops/ragged_plan/first_fault.h"

namespace anabranch {
namespace {

// A unit moves about this many bytes: 10 us at 10 GB/s, well above the cost of handing it out.
constexpr int64_t kBytesPerUnit = 1 << 17;
// Columns of a token that are summed at a time: 4 KiB of f32, which stay in L1 with a row of each.
constexpr int64_t kColumns = 1024;
// Partial sums of a dot product. A fixed number of them fixes the order of the sum.
constexpr int64_t kLanes = 16;

// Calls run(begin, end) for ranges of [0, count), an item moving bytes_per_item bytes.
template <typename Run>
void ForRanges(Context& context, int64_t count, int64_t bytes_per_item, const Run& run) {
  const int64_t per_unit =
      std::max<int64_t>(1, kBytesPerUnit / std::max<int64_t>(1, bytes_per_item));
  context.executor->ParallelFor(CeilDiv(count, per_unit), [&](int64_t unit, int) {
    run(unit * per_unit, std::min(count, (unit + 1) * per_unit));
  });
}

bool IsRowType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

Status Misfit(const char* op, const char* name, const ConstTensorView& view, const char* rule,
              const ConstTensorView& other) {
  return InvalidArgument(op, ": ", name, " is ", view.ToString(), "; must be ", rule, " ",
                         other.ToString());
}

Status CheckIndices(const char* op, const char* name, const FirstFault& fault,
                    const ConstTensorView& indices, int64_t limit) {
  if (!fault.found()) return Status::Ok();
  return OutOfRange(op, ": ", name, "[", fault.index(), "]=", indices.as<int32_t>()[fault.index()],
                    " is out of range; must be -1 or in [0, ", limit, ")");
}

bool IsSlots(const ConstTensorView& view, DType dtype, const ConstTensorView& slot_row) {
  return view.dtype() == dtype && view.HasShape({slot_row.size(0), slot_row.size(1)});
}

bool IsOutside(int32_t index, int64_t limit) { return index < -1 || index >= limit; }

// The slots of one token that have a row, ascending by row.
struct TokenSlots {
  int64_t count = 0;
  int32_t slot[kMaxTopk];
};

// False if a row number is outside [-1, num_rows); the slot is then reported.
bool SortSlots(const int32_t* slot_row, int64_t topk, int64_t num_rows, int64_t first_slot,
               TokenSlots* slots, FirstFault& fault) {
  slots->count = 0;
  for (int64_t j = 0; j < topk; ++j) {
    if (IsOutside(slot_row[j], num_rows)) {
      fault.Report(first_slot + j);
      return false;
    }
    if (slot_row[j] < 0) continue;
    int64_t at = slots->count++;
    for (; at > 0 && slot_row[slots->slot[at - 1]] > slot_row[j]; --at) {
      slots->slot[at] = slots->slot[at - 1];
    }
    slots->slot[at] = static_cast<int32_t>(j);
  }
  return true;
}

template <typename T>
void CombineToken(const CombineRowsArgs& args, int64_t token, const TokenSlots& slots) {
  const int64_t hidden = args.rows.size(1);
  const int64_t topk = args.slot_row.size(1);
  const int32_t* slot_row = args.slot_row.as<int32_t>() + token * topk;
  const float* weights =
      args.weights.has_value() ? args.weights.as<float>() + token * topk : nullptr;
  float sum[kColumns];
  for (int64_t column = 0; column < hidden; column += kColumns) {
    const int64_t width = std::min(kColumns, hidden - column);
    std::fill_n(sum, width, 0.0f);
    for (int64_t i = 0; i < slots.count; ++i) {
      const T* row = args.rows.as<T>() + slot_row[slots.slot[i]] * hidden + column;
      if (weights == nullptr) {
        for (int64_t h = 0; h < width; ++h) sum[h] += ToFloat(row[h]);
      } else {
        const float weight = weights[slots.slot[i]];
        for (int64_t h = 0; h < width; ++h) sum[h] += weight * ToFloat(row[h]);
      }
    }
    T* y = args.y.as<T>() + token * hidden + column;
    for (int64_t h = 0; h < width; ++h) y[h] = FromFloat<T>(sum[h]);
  }
}

// d_row = weight * d_y; returns <row, d_y>.
template <typename T>
float RowGradient(const T* row, const T* d_y, float weight, int64_t hidden, T* d_row) {
  float partial[kLanes] = {};
  int64_t h = 0;
  for (; h + kLanes <= hidden; h += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float gradient = ToFloat(d_y[h + lane]);
      partial[lane] += gradient * ToFloat(row[h + lane]);
      d_row[h + lane] = FromFloat<T>(weight * gradient);
    }
  }
  for (int64_t lane = 0; h < hidden; ++h, ++lane) {
    const float gradient = ToFloat(d_y[h]);
    partial[lane] += gradient * ToFloat(row[h]);
    d_row[h] = FromFloat<T>(weight * gradient);
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
  }
  return partial[0];
}

template <typename T>
void TokenGradient(const CombineRowsGradArgs& args, int64_t token, FirstFault& fault) {
  const int64_t hidden = args.rows.size(1);
  const int64_t topk = args.slot_row.size(1);
  for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot) {
    const int32_t row = args.slot_row.as<int32_t>()[slot];
    float* d_weight = args.d_weights.as<float>() + slot;
    if (IsOutside(row, args.rows.size(0))) return fault.Report(slot);
    if (row < 0) {
      *d_weight = 0.0f;
      continue;
    }
    *d_weight =
        RowGradient(args.rows.as<T>() + row * hidden, args.d_y.as<T>() + token * hidden,
                    args.weights.as<float>()[slot], hidden, args.d_rows.as<T>() + row * hidden);
  }
}

Status Validate(const CombineRowsArgs& args) {
  constexpr const char* kOp = "combine_rows";
  const ConstTensorView& rows = args.rows;
  const ConstTensorView& slot_row = args.slot_row;
  if (rows.rank() != 2 || !IsRowType(rows.dtype())) {
    return InvalidArgument(kOp, ": rows is ", rows.ToString(), "; must be f32 or bf16 [R,H]");
  }
  if (slot_row.rank() != 2 || slot_row.dtype() != DType::kI32 || slot_row.size(1) > kMaxTopk) {
    return InvalidArgument(kOp, ": slot_row is ", slot_row.ToString(),
                           "; must be i32[T,k] with k <= ", kMaxTopk);
  }
  if (args.weights.has_value() && !IsSlots(args.weights, DType::kF32, slot_row)) {
    return Misfit(kOp, "weights", args.weights, "f32 in the shape of slot_row", slot_row);
  }
  if (!args.y.HasShape({slot_row.size(0), rows.size(1)}) || args.y.dtype() != rows.dtype()) {
    return Misfit(kOp, "y", args.y, "[T,H] in the type of rows", rows);
  }
  return Status::Ok();
}

Status Validate(const CombineRowsGradArgs& args) {
  constexpr const char* kOp = "combine_rows_grad";
  const ConstTensorView& rows = args.rows;
  const ConstTensorView& slot_row = args.slot_row;
  if (rows.rank() != 2 || !IsRowType(rows.dtype())) {
    return InvalidArgument(kOp, ": rows is ", rows.ToString(), "; must be f32 or bf16 [R,H]");
  }
  if (slot_row.rank() != 2 || slot_row.dtype() != DType::kI32) {
    return InvalidArgument(kOp, ": slot_row is ", slot_row.ToString(), "; must be i32[T,k]");
  }
  if (!IsSlots(args.weights, DType::kF32, slot_row)) {
    return Misfit(kOp, "weights", args.weights, "f32 in the shape of slot_row", slot_row);
  }
  if (!IsSlots(args.d_weights, DType::kF32, slot_row)) {
    return Misfit(kOp, "d_weights", args.d_weights, "f32 in the shape of slot_row", slot_row);
  }
  if (!args.d_y.HasShape({slot_row.size(0), rows.size(1)}) || args.d_y.dtype() != rows.dtype()) {
    return Misfit(kOp, "d_y", args.d_y, "[T,H] in the type of rows", rows);
  }
  if (!args.d_rows.HasShape({rows.size(0), rows.size(1)}) || args.d_rows.dtype() != rows.dtype()) {
    return Misfit(kOp, "d_rows", args.d_rows, "as rows", rows);
  }
  const ConstTensorView& offsets = args.group_offsets;
  if (offsets.rank() != 1 || offsets.dtype() != DType::kI32 || offsets.size(0) < 1) {
    return InvalidArgument(kOp, ": group_offsets is ", offsets.ToString(), "; must be i32[E+1]");
  }
  const int64_t used = offsets.as<int32_t>()[offsets.size(0) - 1];
  if (used < 0 || used > rows.size(0)) {
    return OutOfRange(kOp, ": group_offsets ends with ", used, "; must be in [0, ", rows.size(0),
                      "]");
  }
  return Status::Ok();
}

}  // namespace

Status GatherRows(const GatherRowsArgs& args, Context& context) {
  const ConstTensorView& x = args.x;
  const ConstTensorView& row_token = args.row_token;
  const TensorView& rows = args.rows;
  if (x.rank() != 2 || !IsRowType(x.dtype())) {
    return InvalidArgument("gather_rows: x is ", x.ToString(), "; must be f32 or bf16 [T,H]");
  }
  if (row_token.rank() != 1 || row_token.dtype() != DType::kI32) {
    return InvalidArgument("gather_rows: row_token is ", row_token.ToString(), "; must be i32[R]");
  }
  if (!rows.HasShape({row_token.size(0), x.size(1)}) || rows.dtype() != x.dtype()) {
    return Misfit("gather_rows", "rows", rows, "[R,H] in the type of x", x);
  }
  const int64_t row_bytes = x.size(1) * SizeOf(x.dtype());
  const int32_t* token = row_token.as<int32_t>();
  const char* from = x.as<char>();
  char* to = rows.as<char>();
  if (row_bytes == 0) return Status::Ok();
  FirstFault fault;
  ForRanges(context, rows.size(0), row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (IsOutside(token[row], x.size(0))) return fault.Report(row);
      if (token[row] < 0) {
        std::memset(to + row * row_bytes, 0, row_bytes);
      } else {
        std::memcpy(to + row * row_bytes, from + token[row] * row_bytes, row_bytes);
      }
    }
  });
  return CheckIndices("gather_rows", "row_token", fault, row_token, x.size(0));
}

Status GatherWeights(const GatherWeightsArgs& args, Context& context) {
  const ConstTensorView& weights = args.weights;
  const ConstTensorView& slot_row = args.slot_row;
  const TensorView& row_weights = args.row_weights;
  if (slot_row.rank() != 2 || slot_row.dtype() != DType::kI32) {
    return InvalidArgument("gather_weights: slot_row is ", slot_row.ToString(),
                           "; must be i32[T,k]");
  }
  if (!IsSlots(weights, DType::kF32, slot_row)) {
    return Misfit("gather_weights", "weights", weights, "f32 in the shape of slot_row", slot_row);
  }
  if (row_weights.rank() != 1 || row_weights.dtype() != DType::kF32) {
    return InvalidArgument("gather_weights: row_weights is ", row_weights.ToString(),
                           "; must be f32[R]");
  }
  const int64_t num_rows = row_weights.size(0);
  const int32_t* row = slot_row.as<int32_t>();
  float* to = row_weights.as<float>();
  ForRanges(context, num_rows, sizeof(float),
            [&](int64_t begin, int64_t end) { std::fill(to + begin, to + end, 0.0f); });
  FirstFault fault;
  ForRanges(context, slot_row.num_elements(), 3 * sizeof(float), [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      if (IsOutside(row[slot], num_rows)) return fault.Report(slot);
      if (row[slot] >= 0) to[row[slot]] = weights.as<float>()[slot];
    }
  });
  return CheckIndices("gather_weights", "slot_row", fault, slot_row, num_rows);
}

Status CombineRows(const CombineRowsArgs& args, Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Validate(args));
  const int64_t topk = args.slot_row.size(1);
  const int64_t num_rows = args.rows.size(0);
  const int64_t token_bytes = (topk + 1) * args.rows.size(1) * SizeOf(args.rows.dtype());
  FirstFault fault;
  ForRanges(context, args.y.size(0), token_bytes, [&](int64_t begin, int64_t end) {
    TokenSlots slots;
    for (int64_t token = begin; token < end; ++token) {
      const int32_t* row = args.slot_row.as<int32_t>() + token * topk;
      if (!SortSlots(row, topk, num_rows, token * topk, &slots, fault)) return;
      if (args.rows.dtype() == DType::kBF16) {
        CombineToken<BF16>(args, token, slots);
      } else {
        CombineToken<float>(args, token, slots);
      }
    }
  });
  return CheckIndices("combine_rows", "slot_row", fault, args.slot_row, num_rows);
}

Status CombineRowsGrad(const CombineRowsGradArgs& args, Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Validate(args));
  const int64_t num_rows = args.rows.size(0);
  const int64_t used = args.group_offsets.as<int32_t>()[args.group_offsets.size(0) - 1];
  const int64_t row_bytes = args.rows.size(1) * SizeOf(args.rows.dtype());
  ForRanges(context, num_rows - used, row_bytes, [&](int64_t begin, int64_t end) {
    if (row_bytes == 0) return;
    std::memset(args.d_rows.as<char>() + (used + begin) * row_bytes, 0, (end - begin) * row_bytes);
  });
  FirstFault fault;
  const int64_t token_bytes = (2 * args.slot_row.size(1) + 1) * row_bytes;
  ForRanges(context, args.slot_row.size(0), token_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      if (args.rows.dtype() == DType::kBF16) {
        TokenGradient<BF16>(args, token, fault);
      } else {
        TokenGradient<float>(args, token, fault);
      }
    }
  });
  return CheckIndices("combine_rows_grad", "slot_row", fault, args.slot_row, num_rows);
}

}  // namespace anabranch
