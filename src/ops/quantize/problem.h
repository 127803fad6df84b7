// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_PROBLEM_H_
#define ANABRANCH_OPS_QUANTIZE_PROBLEM_H_

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "ops/quantize/layout.h"
#include "ops/quantize/quantize.h"

// Operands and results of one call, for tests and benchmarks.
namespace anabranch::quantize {

struct Problem {
  // Rows of group g are sizes[g]; no sizes: one group of `rows` without group_sizes.
  Problem(QuantizeOptions with, int64_t num_rows, int64_t num_columns,
          std::vector<int32_t> group_sizes = {})
      : options(with), rows(num_rows), columns(num_columns), sizes(std::move(group_sizes)) {
    x.assign(rows * columns, 0.0f);
    const int64_t groups = sizes.empty() ? 1 : static_cast<int64_t>(sizes.size());
    data_rows = RoundUp(rows + (options.row_alignment - 1) * groups, options.row_alignment);
    scale_rows = BlockRows(options) == 1 ? data_rows : data_rows / BlockRows(options) + groups;
    scale_columns = CeilDiv(columns, BlockColumns(options));
    data.assign(data_rows * columns, 0xee);
    scale.assign(scale_rows * scale_columns * 4, 0xee);
    tensor_scale.assign(groups, -1);
    offsets.assign(groups + 1, -1);
    back.assign(rows * columns, -1);
    statistics.assign(kQuantizeStatistics, -1);
  }
  // Normal numbers whose size varies by row and column over several powers of two.
  void Fill(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const int power = static_cast<int>(i / columns * 7 + i % columns / 40) % 23 - 11;
      x[i] = std::ldexp(normal(random), power);
    }
  }

  DType ScaleDType() const {
    const ScaleKind kind = FactsOf(options.format).scale;
    return kind == ScaleKind::kE8m0   ? DType::kE8M0
           : kind == ScaleKind::kE4m3 ? DType::kE4M3
                                      : DType::kF32;
  }
  ConstTensorView Sizes() const {
    if (sizes.empty()) return {};
    return ConstTensorView(sizes.data(), {static_cast<int64_t>(sizes.size())});
  }
  QuantizeArgs Args() {
    const auto groups = static_cast<int64_t>(tensor_scale.size());
    return {options,
            ConstTensorView(x.data(), {rows, columns}),
            Sizes(),
            ConstTensorView(key, {4}),
            TensorView(data.data(), {data_rows, columns}),
            TensorView(scale.data(), ScaleDType(), {scale_rows, scale_columns}),
            TensorView(tensor_scale.data(), {groups}),
            TensorView(offsets.data(), {groups + 1})};
  }
  DequantizeArgs BackArgs() {
    const QuantizeArgs args = Args();
    return {options,           args.data,        args.scale,
            args.tensor_scale, args.group_sizes, TensorView(back.data(), {rows, columns})};
  }
  QuantizeDequantizeArgs RoundTripArgs() {
    const QuantizeArgs args = Args();
    QuantizeOptions unpadded = options;
    unpadded.row_alignment = 1;
    return {unpadded,
            args.x,
            args.group_sizes,
            args.key,
            TensorView(back.data(), {rows, columns}),
            args.tensor_scale,
            TensorView(statistics.data(), {kQuantizeStatistics})};
  }
  const float* float_scale() const { return reinterpret_cast<const float*>(scale.data()); }

  QuantizeOptions options;
  int64_t rows, columns, data_rows, scale_rows, scale_columns;
  std::vector<int32_t> sizes;
  int32_t key[4] = {12, 34, 0, 0};
  std::vector<float> x, tensor_scale, back, statistics;
  std::vector<uint8_t> data, scale;
  std::vector<int32_t> offsets;
};

}  // namespace anabranch::quantize

#endif  // ANABRANCH_OPS_QUANTIZE_PROBLEM_H_
