// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_LAYOUT_H_
#define ANABRANCH_OPS_QUANTIZE_LAYOUT_H_

#include <cstdint>

#include "base/status.h"
#include "base/tensor_view.h"
#include "ops/quantize/quantize.h"

namespace anabranch::quantize {

// Where one group lies in x, in data and in the rows of scale.
struct GroupSpan {
  int64_t first_row;
  int64_t rows;
  int64_t data_row;
  int64_t scale_row;
};

// Groups of x; 1 when sizes are absent.
inline int64_t NumGroups(const ConstTensorView& group_sizes) {
  return group_sizes.has_value() ? group_sizes.size(0) : 1;
}

// Rows of one block: of scale, one row stands for so many of data.
inline int64_t BlockRows(const QuantizeOptions& options) {
  const FormatFacts facts = FactsOf(options.format);
  return facts.square || options.axis == 0 ? facts.block : 1;
}
inline int64_t BlockColumns(const QuantizeOptions& options) {
  const FormatFacts facts = FactsOf(options.format);
  return facts.square || options.axis == 1 ? facts.block : 1;
}

// Fills spans[0 ... G]; the last one holds the ends. num_rows are those of x, data_rows of data.
Status PlanGroups(const char* op, const ConstTensorView& group_sizes, int64_t num_rows,
                  int64_t data_rows, int64_t row_alignment, int64_t block_rows, GroupSpan* spans);

// The rules on shapes and types, each checked once.
Status CheckOptions(const char* op, const QuantizeOptions& options);
Status CheckSource(const char* op, const ConstTensorView& x, const ConstTensorView& group_sizes);
Status CheckKey(const char* op, const QuantizeOptions& options, const ConstTensorView& key);
Status CheckCodes(const char* op, const QuantizeOptions& options, const ConstTensorView& data,
                  const ConstTensorView& scale);
Status CheckTensorScale(const char* op, const ConstTensorView& tensor_scale, int64_t num_groups);
Status CheckStatistics(const char* op, const ConstTensorView& statistics);

Status Check(const QuantizeArgs& args);
Status Check(const DequantizeArgs& args);
Status Check(const QuantizeDequantizeArgs& args);
Status Check(const QuantizeDequantizeBothArgs& args);
Status Check(const TensorAmaxArgs& args);
Status Check(const RandomHadamardArgs& args);

// Rows of scale that the last span must not exceed.
Status CheckScaleRows(const char* op, const ConstTensorView& scale, const GroupSpan& end);

}  // namespace anabranch::quantize

#endif  // ANABRANCH_OPS_QUANTIZE_LAYOUT_H_
