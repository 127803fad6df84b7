// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The tile's epilogues on rows that lie in memory: a tile is a few runs of consecutive elements.
#include "ops/expert_rows/expert_rows.h"

#include <algorithm>
#include <cstring>

namespace anabranch {
namespace {

using tile::kGateColumns;
using tile::kPanelColumns;
using tile::kTileRows;

constexpr int64_t kUnitElements = int64_t{1} << 14;
constexpr int kSums = 16;

Status CheckRows(const char* op, const char* name, const ConstTensorView& view,
                 const ConstTensorView& like, DType dtype) {
  const bool is_row_type = dtype == DType::kF32 || dtype == DType::kBF16;
  if (like.rank() == 2 && is_row_type && view.dtype() == dtype &&
      view.HasShape({like.size(0), like.size(1)})) {
    return Status::Ok();
  }
  return InvalidArgument(op, ": ", name, " is ", view.ToString(), " beside ", like.ToString(),
                         "; must be ", is_row_type ? Name(dtype) : "f32 or bf16",
                         ", of one shape [R, C]");
}

Status CheckWeights(const char* op, const char* name, const ConstTensorView& view,
                    const ConstTensorView& x) {
  if (view.dtype() == DType::kF32 && view.HasShape({x.size(0)})) return Status::Ok();
  return InvalidArgument(op, ": ", name, " is ", view.ToString(), " and x ", x.ToString(),
                         "; must be f32 [R]");
}

const std::byte* At(const ConstTensorView& view, int64_t index) {
  return view.as<std::byte>() + index * SizeOf(view.dtype());
}
std::byte* At(const TensorView& view, int64_t index) {
  return view.as<std::byte>() + index * SizeOf(view.dtype());
}

// to[i] = element first + i.
void Widen(const ConstTensorView& view, int64_t first, int64_t count, float* to) {
  if (view.dtype() == DType::kF32) {
    std::memcpy(to, view.as<float>() + first, count * sizeof(float));
    return;
  }
  const BF16* from = view.as<BF16>() + first;
  for (int64_t i = 0; i < count; ++i) to[i] = ToFloat(from[i]);
}

// Calls run(first, runs, columns) for tiles of up to kTileRows runs of `width` elements, from first
// on, that make up `count` elements; an incomplete run is a tile of its own.
template <typename Run>
void ForEachTile(int64_t begin, int64_t end, int width, const Run& run) {
  for (int64_t first = begin; first < end;) {
    const int64_t whole = std::min<int64_t>((end - first) / width, kTileRows);
    const int runs = static_cast<int>(std::max<int64_t>(whole, 1));
    const int columns = whole > 0 ? width : static_cast<int>(end - first);
    run(first, runs, columns);
    first += static_cast<int64_t>(runs) * columns;
  }
}

// Spreads `count` elements over the workers: body(begin, end).
template <typename Body>
void ForEachUnit(const Context& context, int64_t count, const Body& body) {
  context.executor->ParallelFor(CeilDiv(count, kUnitElements), [&](int64_t unit, int) {
    body(unit * kUnitElements, std::min((unit + 1) * kUnitElements, count));
  });
}

// The same with whole rows: body(row).
template <typename Body>
void ForEachRow(const Context& context, const ConstTensorView& x, const Body& body) {
  const int64_t rows = x.size(0), step = CeilDiv(kUnitElements, std::max<int64_t>(x.size(1), 1));
  context.executor->ParallelFor(CeilDiv(rows, step), [&](int64_t unit, int) {
    for (int64_t row = unit * step; row < std::min((unit + 1) * step, rows); ++row) body(row);
  });
}

// Sum of grad * x over a row, and x_grad = weight * grad.
template <typename T>
float WeighRowGrad(int64_t columns, float weight, const float* x, const T* grad, float* x_grad) {
  float sums[kSums] = {};
  int64_t c = 0;
  for (; c + kSums <= columns; c += kSums) {
    for (int i = 0; i < kSums; ++i) {
      const float of_out = ToFloat(grad[c + i]);
      sums[i] += of_out * x[c + i];
      x_grad[c + i] = weight * of_out;
    }
  }
  for (int i = 0; c < columns; ++c, ++i) {
    const float of_out = ToFloat(grad[c]);
    sums[i] += of_out * x[c];
    x_grad[c] = weight * of_out;
  }
  float sum = 0;
  for (float one : sums) sum += one;
  return sum;
}

}  // namespace

Status ActivateRows(const ActivateRowsArgs& args, const Context& context) {
  constexpr const char* kOp = "activate_rows";
  const DType type = args.gate.dtype();
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "gate", args.gate, args.gate, type));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "up", args.up, args.gate, type));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "hidden", args.hidden, args.gate, type));
  const tile::Epilogue& epilogue = tile::Kernels().epilogue(type);
  ForEachUnit(context, args.gate.num_elements(), [&](int64_t begin, int64_t end) {
    alignas(64) float tile[kTileRows * kPanelColumns] = {};
    ForEachTile(begin, end, kGateColumns, [&](int64_t first, int runs, int columns) {
      void* hidden[kTileRows];
      for (int r = 0; r < runs; ++r) {
        const int64_t at = first + r * kGateColumns;
        Widen(args.gate, at, columns, tile + r * kPanelColumns);
        Widen(args.up, at, columns, tile + r * kPanelColumns + kGateColumns);
        hidden[r] = At(args.hidden, at);
      }
      epilogue.activate(args.activation, tile, runs, columns, nullptr, nullptr, hidden);
    });
  });
  return Status::Ok();
}

Status ActivateRowsGrad(const ActivateRowsGradArgs& args, const Context& context) {
  constexpr const char* kOp = "activate_rows_grad";
  const DType type = args.gate.dtype();
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "gate", args.gate, args.gate, type));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "up", args.up, args.gate, type));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "hidden_grad", args.hidden_grad, args.gate, type));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "gate_grad", args.gate_grad, args.gate, type));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "up_grad", args.up_grad, args.gate, type));
  const tile::Epilogue& epilogue = tile::Kernels().epilogue(type);
  ForEachUnit(context, args.gate.num_elements(), [&](int64_t begin, int64_t end) {
    alignas(64) float tile[kTileRows * kPanelColumns] = {};
    alignas(64) float unused[kTileRows * kPanelColumns];
    float sums[kTileRows], ones[kTileRows];
    std::fill_n(ones, kTileRows, 1.0f);
    ForEachTile(begin, end, kPanelColumns, [&](int64_t first, int runs, int columns) {
      const void *gate[kTileRows], *up[kTileRows];
      void *gate_grad[kTileRows], *up_grad[kTileRows], *hidden[kTileRows];
      for (int r = 0; r < runs; ++r) {
        const int64_t at = first + r * kPanelColumns;
        Widen(args.hidden_grad, at, columns, tile + r * kPanelColumns);
        gate[r] = At(args.gate, at);
        up[r] = At(args.up, at);
        gate_grad[r] = At(args.gate_grad, at);
        up_grad[r] = At(args.up_grad, at);
        hidden[r] = unused + r * kPanelColumns;
      }
      epilogue.activate_grad(args.activation, tile, runs, columns, ones, gate, up, gate_grad,
                             up_grad, hidden, sums);
    });
  });
  return Status::Ok();
}

Status WeighRows(const WeighRowsArgs& args, const Context& context) {
  constexpr const char* kOp = "weigh_rows";
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "x", args.x, args.x, DType::kF32));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "out", args.out, args.x, args.out.dtype()));
  ANABRANCH_RETURN_IF_ERROR(CheckWeights(kOp, "weights", args.weights, args.x));
  const tile::Epilogue& epilogue = tile::Kernels().epilogue(args.out.dtype());
  const int64_t columns = args.x.size(1);
  ForEachRow(context, args.x, [&](int64_t row) {
    float weights[kTileRows];
    std::fill_n(weights, kTileRows, args.weights.as<float>()[row]);
    const auto run = [&](int64_t first, int runs, int width) {
      alignas(64) float part[kPanelColumns] = {};
      const float* tile = args.x.as<float>() + first;
      if (width < kPanelColumns) {  // vectors would end behind the row
        std::memcpy(part, tile, width * sizeof(float));
        tile = part;
      }
      void* out[kTileRows];
      for (int r = 0; r < runs; ++r) out[r] = At(args.out, first + r * kPanelColumns);
      epilogue.store_weighted(tile, runs, width, weights, out);
    };
    ForEachTile(row * columns, (row + 1) * columns, kPanelColumns, run);
  });
  return Status::Ok();
}

Status WeighRowsGrad(const WeighRowsGradArgs& args, const Context& context) {
  constexpr const char* kOp = "weigh_rows_grad";
  const DType type = args.out_grad.dtype();
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "x", args.x, args.x, DType::kF32));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "out_grad", args.out_grad, args.x, type));
  ANABRANCH_RETURN_IF_ERROR(CheckRows(kOp, "x_grad", args.x_grad, args.x, DType::kF32));
  ANABRANCH_RETURN_IF_ERROR(CheckWeights(kOp, "weights", args.weights, args.x));
  ANABRANCH_RETURN_IF_ERROR(CheckWeights(kOp, "weights_grad", args.weights_grad, args.x));
  const int64_t columns = args.x.size(1);
  ForEachRow(context, args.x, [&](int64_t row) {
    const float weight = args.weights.as<float>()[row];
    const float* x = args.x.as<float>() + row * columns;
    float* x_grad = args.x_grad.as<float>() + row * columns;
    const int64_t first = row * columns;
    args.weights_grad.as<float>()[row] =
        type == DType::kBF16
            ? WeighRowGrad(columns, weight, x, args.out_grad.as<BF16>() + first, x_grad)
            : WeighRowGrad(columns, weight, x, args.out_grad.as<float>() + first, x_grad);
  });
  return Status::Ok();
}

}  // namespace anabranch
