// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy/labelled.h"

#include <cstring>
#include <limits>
#include <string>

namespace anabranch::linear_cross_entropy {
namespace {

constexpr int64_t kMinPartRows = 256;
// At 4 units of equal size for each worker the last ones to finish idle an eighth of the time at
// most, and not at all when the units divide evenly.
constexpr int64_t kUnitsPerWorker = 4;

Status CheckLabels(const Inputs& inputs, const Sizes& sizes) {
  const int32_t* labels = inputs.labels.as<int32_t>();
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    if (labels[t] == inputs.ignore_index) continue;
    if (labels[t] < 0 || labels[t] >= sizes.vocabulary) {
      return OutOfRange("linear_cross_entropy: labels[", t, "]=", labels[t], "; must be in [0, ",
                        sizes.vocabulary, ") or ignore_index=", inputs.ignore_index);
    }
  }
  return Status::Ok();
}

}  // namespace

Sizes SizesOf(const Inputs& inputs) {
  return {inputs.x.dtype(), inputs.w.dtype(), inputs.x.size(0), inputs.x.size(1), inputs.w.size(1)};
}

Status CheckView(const char* name, const ConstTensorView& view, DType dtype,
                 std::initializer_list<int64_t> shape) {
  if (view.has_value() && view.dtype() == dtype && view.HasShape(shape)) return Status::Ok();
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "[" : ",") + std::to_string(size);
  return InvalidArgument("linear_cross_entropy: ", name, " is ", view.ToString(), "; must be ",
                         anabranch::Name(dtype), text, "]");
}

Status CheckScratch(const Context& context, int64_t needed) {
  if (needed == 0 || (context.scratch != nullptr && needed <= context.scratch_bytes)) {
    return Status::Ok();
  }
  return InvalidArgument("linear_cross_entropy: scratch is ", context.scratch_bytes,
                         " bytes; needs ", needed);
}

Status Validate(const Inputs& inputs, Sizes* sizes) {
  const ConstTensorView &x = inputs.x, &w = inputs.w;
  if (x.rank() != 2 || w.rank() != 2 || x.size(1) != w.size(0)) {
    return InvalidArgument("linear_cross_entropy: x is ", x.ToString(), " and w ", w.ToString(),
                           "; must be [T,H] and [H,V]");
  }
  const bool mixed = x.dtype() == DType::kBF16 && w.dtype() == DType::kF32;
  if (x.dtype() == DType::kI32 || (x.dtype() != w.dtype() && !mixed)) {
    return InvalidArgument("linear_cross_entropy: x is ", x.ToString(), " and w ", w.ToString(),
                           "; types must be equal, or bf16 rows with f32 weights");
  }
  *sizes = SizesOf(inputs);
  if (sizes->vocabulary < 1 || sizes->vocabulary > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("linear_cross_entropy: w is ", w.ToString(),
                           "; its columns must number 1 to 2^31 - 1");
  }
  ANABRANCH_RETURN_IF_ERROR(CheckView("labels", inputs.labels, DType::kI32, {sizes->tokens}));
  return CheckLabels(inputs, *sizes);
}

Labelled TakeLabelled(const Sizes& sizes, ScratchArena* arena) {
  Labelled labelled;
  labelled.count = 0;
  labelled.token = arena->Take<int32_t>(sizes.tokens);
  labelled.label = arena->Take<int32_t>(sizes.tokens);
  labelled.x_rows = arena->Take<const void*>(sizes.tokens);
  const bool odd = sizes.type == DType::kBF16 && sizes.hidden % 2 == 1;
  labelled.padded = arena->Take<BF16>(odd ? sizes.tokens * (sizes.hidden + 1) : 0);
  return labelled;
}

void FillLabelled(const Inputs& inputs, const Sizes& sizes, Labelled* labelled) {
  const int32_t* labels = inputs.labels.as<int32_t>();
  const int64_t pitch = sizes.hidden * sizes.element_bytes();
  const bool odd = sizes.type == DType::kBF16 && sizes.hidden % 2 == 1;
  labelled->count = 0;
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    if (labels[t] == inputs.ignore_index) continue;
    const int64_t i = labelled->count++;
    labelled->token[i] = static_cast<int32_t>(t);
    labelled->label[i] = labels[t];
    const void* row = static_cast<const char*>(inputs.x.data()) + t * pitch;
    if (odd) {
      BF16* whole = labelled->padded + i * (sizes.hidden + 1);
      std::memcpy(whole, row, pitch);
      whole[sizes.hidden] = BF16{};
      row = whole;
    }
    labelled->x_rows[i] = row;
  }
}

void PackColumns(const Inputs& inputs, const Sizes& sizes, int64_t column, int columns,
                 const PanelScratch& scratch) {
  const int64_t pitch = sizes.vocabulary * SizeOf(sizes.weight_type);
  const char* w = static_cast<const char*>(inputs.w.data());
  for (int64_t h = 0; h < sizes.hidden; ++h) scratch.rows[h] = w + h * pitch;
  tile::Kernels()
      .pack(sizes.weight_type, sizes.type)
      .rows(scratch.rows, sizes.hidden, column, columns, tile::kPanelColumns, scratch.panel);
}

tile::PanelPrefetch PrefetchColumns(const Inputs& inputs, const Sizes& sizes, int64_t column,
                                    int64_t end) {
  if (column >= end) return {};
  const int64_t bytes = SizeOf(sizes.weight_type);
  return {static_cast<const char*>(inputs.w.data()) + column * bytes, sizes.vocabulary * bytes,
          sizes.hidden, ColumnsAt(column, end) * bytes};
}

int64_t NumRowParts(int64_t rows, int64_t others, int64_t workers, int64_t max_rows) {
  const int64_t wanted =
      workers == 1 ? 1 : CeilDiv(workers * kUnitsPerWorker, std::max<int64_t>(others, 1));
  const int64_t parts = std::min(wanted, std::max<int64_t>(rows / kMinPartRows, 1));
  return std::max(parts, CeilDiv(rows, max_rows));
}

}  // namespace anabranch::linear_cross_entropy
