// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What quantisation is: scalar, block by block. amax / max is divided here and multiplied by the
// rounded reciprocal in the kernels; the scales are the same for every f32 (a test shows it).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "ops/quantize/hadamard.h"
#include "ops/quantize/layout.h"
#include "ops/quantize/quantize.h"

namespace anabranch {
namespace {

using quantize::GroupSpan;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kFloatMax = std::numeric_limits<float>::max();

float Element(const ConstTensorView& x, int64_t index) {
  return x.dtype() == DType::kF32 ? x.as<float>()[index] : ToFloat(x.as<BF16>()[index]);
}
void Write(const TensorView& out, int64_t index, float value) {
  if (out.dtype() == DType::kF32) {
    out.as<float>()[index] = value;
  } else {
    out.as<BF16>()[index] = ToBF16(value);
  }
}

// E8M0 code of a power of two, 2^exponent, within the type's range.
uint8_t PowerCode(int exponent) {
  return static_cast<uint8_t>(std::clamp(exponent, -127, 127) + 127);
}

// The code of a block's power of two; amax is a number.
uint8_t SharedPower(ScaleMode mode, const ElementType& element, float amax) {
  const float size = mode == ScaleMode::kRceil ? amax / element.max : amax;
  if (size == 0) return 0;
  int exponent = std::ilogb(size);
  const double fraction = std::ldexp(static_cast<double>(size), -exponent);  // 1 <= fraction < 2
  if (mode == ScaleMode::kRceil) return PowerCode(exponent + (fraction > 1 ? 1 : 0));
  const double half_step = std::ldexp(0.5, -element.mantissa_bits);
  if (mode == ScaleMode::kEven && fraction + half_step >= 2) ++exponent;
  if (mode == ScaleMode::kCeil && fraction > 1) ++exponent;
  return PowerCode(exponent - std::ilogb(element.max));
}

struct Scale {
  float value;       // what an element is multiplied by to get its value back
  float multiplier;  // what x is multiplied by
  uint8_t code;      // of value, for scales of one byte
};

// encode is NVFP4's S, 1 for others. amax is NaN where the block has one.
Scale ScaleOf(const QuantizeOptions& options, float amax, float encode) {
  const FormatFacts facts = FactsOf(options.format);
  const bool broken = std::isnan(amax) || (std::isinf(amax) && options.strict);
  if (facts.scale == ScaleKind::kE4m3) {
    if (broken) return {kNan, kNan, kE4m3.nan_code};
    const uint8_t code = ToElement(kE4m3, amax * (encode * (1.0f / 6.0f)));
    const float value = ElementValue(kE4m3, code);
    return {value, std::min(1.0f / (value * (1.0f / encode)), kFloatMax), code};
  }
  if (broken) return {kNan, kNan, kE8m0Nan};
  if (facts.scale == ScaleKind::kF32 && (amax == 0 || std::isinf(amax))) return {1, 1, 0};
  if (options.scale_mode == ScaleMode::kFloat32) {
    const float multiplier = std::min(facts.element.max / amax, kFloatMax);
    return {1.0f / multiplier, multiplier, 0};
  }
  const uint8_t code =
      std::isinf(amax) ? 0xfe : SharedPower(options.scale_mode, facts.element, amax);
  return {E8m0Value(code), E8m0Reciprocal(code), code};
}

uint32_t Draw(const ConstTensorView& key, int64_t group, int64_t row, int64_t column) {
  const auto* words = key.as<uint32_t>();
  const auto lane = static_cast<uint32_t>(column / 64 * 16 + column % 16);
  return Philox(
      {lane, words[2] + static_cast<uint32_t>(row), words[3] + static_cast<uint32_t>(group), 0},
      {words[0], words[1]})[column % 64 / 16];
}

// Of rows [begin, end): the largest finite size counts, or infinity unless strict.
float Amax(const QuantizeOptions& options, const ConstTensorView& x, int64_t begin, int64_t end) {
  float amax = 0;
  for (int64_t i = begin * x.size(1); i < end * x.size(1); ++i) {
    const float size = std::abs(Element(x, i));
    if (!(options.strict && std::isinf(size))) amax = std::max(amax, size);  // false for NaN
  }
  return amax;
}

// NVFP4's S.
float Encode(const QuantizeOptions& options, float amax) {
  if (FactsOf(options.format).scale != ScaleKind::kE4m3) return 1;
  const float encode = std::min(kNvfp4Range / amax, kFloatMax);
  return amax == 0 || encode == 0 ? 1 : encode;
}

// The amax of each group's tensor: what is given, or that of the group or of all of x.
std::vector<float> TensorAmaxes(const QuantizeOptions& options, const ConstTensorView& x,
                                const std::vector<GroupSpan>& spans, const ConstTensorView& given) {
  std::vector<float> amax(spans.size() - 1);
  for (size_t group = 0; group < amax.size(); ++group) {
    const GroupSpan& span = spans[group];
    amax[group] = given.has_value() ? given.as<float>()[group]
                  : options.amax_per_group
                      ? Amax(options, x, span.first_row, span.first_row + span.rows)
                      : Amax(options, x, 0, spans.back().first_row);
  }
  return amax;
}

// Calls visit(span, group, row, rows, column, columns, scale) for each block; rows count within
// the group. Returns the number of groups.
template <typename Visit>
void ForEachBlock(const QuantizeOptions& options, const ConstTensorView& x,
                  const std::vector<GroupSpan>& spans, const std::vector<float>& amaxes,
                  const TensorView& tensor_scale, const Visit& visit) {
  const int64_t num_groups = static_cast<int64_t>(spans.size()) - 1, columns = x.size(1);
  const int64_t block_rows = quantize::BlockRows(options);
  const int64_t block_columns = quantize::BlockColumns(options);
  for (int64_t group = 0; group < num_groups; ++group) {
    const GroupSpan& span = spans[group];
    const float encode = Encode(options, amaxes[group]);
    tensor_scale.as<float>()[group] = 1.0f / encode;
    for (int64_t row = 0; row < span.rows; row += block_rows) {
      const int64_t rows = std::min(block_rows, span.rows - row);
      for (int64_t column = 0; column < columns; column += block_columns) {
        const int64_t width = std::min(block_columns, columns - column);
        float amax = 0;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < width; ++c) {
            const float size =
                std::abs(Element(x, (span.first_row + row + r) * columns + column + c));
            amax = std::isnan(size) || std::isnan(amax) ? kNan : std::max(amax, size);
          }
        }
        visit(group, row, rows, column, width, ScaleOf(options, amax, encode));
      }
    }
  }
}

uint8_t Code(const QuantizeOptions& options, const ConstTensorView& key, float scaled,
             int64_t group, int64_t row, int64_t column) {
  const ElementType element = FactsOf(options.format).element;
  if (!options.stochastic) return ToElement(element, scaled);
  return ToElementStochastic(element, scaled, Draw(key, group, row, column));
}

std::vector<GroupSpan> Spans(const ConstTensorView& group_sizes) {
  return std::vector<GroupSpan>(quantize::NumGroups(group_sizes) + 1);
}

struct Sums {
  double values[kQuantizeStatistics] = {};

  // x became `element`, which stands for `value` with the tensor's scale.
  void Add(const ElementType& type, float x, float scaled, float element, double value) {
    values[0] += 1;
    values[1] += std::abs(scaled) > type.max;
    values[2] += x != 0 && element == 0;
    values[3] += static_cast<double>(x) * x;
    values[4] += (x - value) * (x - value);
  }
  void Write(const TensorView& statistics) const {
    for (int64_t i = 0; statistics.has_value() && i < kQuantizeStatistics; ++i) {
      statistics.as<float>()[i] = static_cast<float>(values[i]);
    }
  }
};

float ScaleValue(const ConstTensorView& scale, int64_t index) {
  if (scale.dtype() == DType::kF32) return scale.as<float>()[index];
  const uint8_t code = scale.as<uint8_t>()[index];
  return scale.dtype() == DType::kE8M0 ? E8m0Value(code) : ElementValue(kE4m3, code);
}

}  // namespace

Status QuantizeReference(const QuantizeArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  const QuantizeOptions& options = args.options;
  const int64_t columns = args.x.size(1), block_rows = quantize::BlockRows(options);
  auto spans = Spans(args.group_sizes);
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups("quantize", args.group_sizes, args.x.size(0),
                                                 args.data.size(0), options.row_alignment,
                                                 block_rows, spans.data()));
  ANABRANCH_RETURN_IF_ERROR(quantize::CheckScaleRows("quantize", args.scale, spans.back()));
  for (size_t group = 0; group < spans.size(); ++group) {
    args.group_offsets.as<int32_t>()[group] = static_cast<int32_t>(spans[group].data_row);
  }
  std::fill_n(args.data.as<uint8_t>(), args.data.num_elements(), uint8_t{0});
  std::fill_n(args.scale.as<uint8_t>(), args.scale.num_elements() * SizeOf(args.scale.dtype()),
              uint8_t{0});
  const ElementType element = FactsOf(options.format).element;
  Sums sums;
  ForEachBlock(options, args.x, spans, TensorAmaxes(options, args.x, spans, {}), args.tensor_scale,
               [&](int64_t group, int64_t row, int64_t rows, int64_t column, int64_t width,
                   const Scale& scale) {
                 const GroupSpan& span = spans[group];
                 const float tensor_scale = args.tensor_scale.as<float>()[group];
                 const int64_t at = (span.scale_row + row / block_rows) * args.scale.size(1) +
                                    column / quantize::BlockColumns(options);
                 if (args.scale.dtype() == DType::kF32) {
                   args.scale.as<float>()[at] = scale.value;
                 } else {
                   args.scale.as<uint8_t>()[at] = scale.code;
                 }
                 for (int64_t r = row; r < row + rows; ++r) {
                   for (int64_t c = column; c < column + width; ++c) {
                     const float x = Element(args.x, (span.first_row + r) * columns + c);
                     const float scaled = x * scale.multiplier;
                     const uint8_t code = Code(options, args.key, scaled, group, r, c);
                     args.data.as<uint8_t>()[(span.data_row + r) * columns + c] = code;
                     const float value = ElementValue(element, code);
                     sums.Add(element, x, scaled, value,
                              static_cast<double>(value * scale.value) * tensor_scale);
                   }
                 }
               });
  sums.Write(args.statistics);
  return Status::Ok();
}

Status DequantizeReference(const DequantizeArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  const QuantizeOptions& options = args.options;
  const int64_t columns = args.out.size(1), block_rows = quantize::BlockRows(options);
  auto spans = Spans(args.group_sizes);
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups("dequantize", args.group_sizes, args.out.size(0),
                                                 args.data.size(0), options.row_alignment,
                                                 block_rows, spans.data()));
  ANABRANCH_RETURN_IF_ERROR(quantize::CheckScaleRows("dequantize", args.scale, spans.back()));
  for (int64_t i = 0; i < args.out.num_elements(); ++i) Write(args.out, i, 0);
  for (size_t group = 0; group + 1 < spans.size(); ++group) {
    const GroupSpan& span = spans[group];
    for (int64_t row = 0; row < span.rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const float scale =
            ScaleValue(args.scale, (span.scale_row + row / block_rows) * args.scale.size(1) +
                                       column / quantize::BlockColumns(options));
        const uint8_t code = args.data.as<uint8_t>()[(span.data_row + row) * columns + column];
        const float value = ElementValue(FactsOf(options.format).element, code) *
                            (scale * args.tensor_scale.as<float>()[group]);
        Write(args.out, (span.first_row + row) * columns + column, value);
      }
    }
  }
  return Status::Ok();
}

Status QuantizeDequantizeReference(const QuantizeDequantizeArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  const QuantizeOptions& options = args.options;
  const ElementType element = FactsOf(options.format).element;
  const int64_t columns = args.x.size(1);
  auto spans = Spans(args.group_sizes);
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups(
      "quantize_dequantize", args.group_sizes, args.x.size(0), args.x.size(0), 1, 1, spans.data()));
  for (int64_t i = 0; i < args.out.num_elements(); ++i) Write(args.out, i, 0);
  Sums sums;
  ForEachBlock(options, args.x, spans, TensorAmaxes(options, args.x, spans, args.amax),
               args.tensor_scale,
               [&](int64_t group, int64_t row, int64_t rows, int64_t column, int64_t width,
                   const Scale& scale) {
                 const float tensor_scale = args.tensor_scale.as<float>()[group];
                 for (int64_t r = row; r < row + rows; ++r) {
                   for (int64_t c = column; c < column + width; ++c) {
                     const int64_t at = (spans[group].first_row + r) * columns + c;
                     const float x = Element(args.x, at), scaled = x * scale.multiplier;
                     const uint8_t code = Code(options, args.key, scaled, group, r, c);
                     const float value = ElementValue(element, code) * scale.value;
                     Write(args.out, at, value);
                     sums.Add(element, x, scaled, ElementValue(element, code),
                              static_cast<double>(value) * tensor_scale);
                   }
                 }
               });
  sums.Write(args.statistics);
  return Status::Ok();
}

Status QuantizeDequantizeBothReference(const QuantizeDequantizeBothArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  QuantizeDequantizeArgs other = args.one;
  other.options.axis = 1 - args.one.options.axis;
  other.out = args.other_out;
  other.statistics = args.other_statistics;
  ANABRANCH_RETURN_IF_ERROR(QuantizeDequantizeReference(args.one));
  return QuantizeDequantizeReference(other);
}

Status TensorAmaxReference(const TensorAmaxArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  auto spans = Spans(args.group_sizes);
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups("tensor_amax", args.group_sizes, args.x.size(0),
                                                 args.x.size(0), 1, 1, spans.data()));
  QuantizeOptions each = args.options;
  each.amax_per_group = true;
  const std::vector<float> amax = TensorAmaxes(each, args.x, spans, {});
  std::copy(amax.begin(), amax.end(), args.amax.as<float>());
  return Status::Ok();
}

Status RandomHadamardReference(const RandomHadamardArgs& args) {
  ANABRANCH_RETURN_IF_ERROR(quantize::Check(args));
  auto spans = Spans(args.group_sizes);
  ANABRANCH_RETURN_IF_ERROR(quantize::PlanGroups("random_hadamard", args.group_sizes,
                                                 args.x.size(0), args.out.size(0),
                                                 args.row_alignment, 1, spans.data()));
  const int64_t columns = args.x.size(1);
  std::fill_n(args.out.as<BF16>(), args.out.num_elements(), BF16{});
  for (size_t group = 0; group + 1 < spans.size(); ++group) {
    const GroupSpan& span = spans[group];
    for (int64_t row = 0; row < span.rows; row += quantize::kHadamardRows) {
      for (int64_t column = 0; column < columns; ++column) {
        float values[quantize::kHadamardRows] = {};
        for (int64_t r = 0; r < std::min(quantize::kHadamardRows, span.rows - row); ++r) {
          values[r] = quantize::kHadamardSigns[r] *
                      Element(args.x, (span.first_row + row + r) * columns + column);
        }
        for (int stride = 1; stride < quantize::kHadamardRows; stride *= 2) {
          for (int r = 0; r < quantize::kHadamardRows; ++r) {
            if ((r & stride) != 0) continue;
            const float low = values[r], high = values[r + stride];
            values[r] = low + high;
            values[r + stride] = low - high;
          }
        }
        for (int64_t r = 0; r < quantize::kHadamardRows; ++r) {
          args.out.as<BF16>()[(span.data_row + row + r) * columns + column] =
              ToBF16(values[r] * 0.25f);
        }
      }
    }
  }
  return Status::Ok();
}

}  // namespace anabranch
