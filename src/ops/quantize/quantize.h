// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_QUANTIZE_H_
#define ANABRANCH_OPS_QUANTIZE_QUANTIZE_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "ops/quantize/format.h"

// Block-scaled low precision: value = element * scale of its block (* scale of its tensor).
//   Shapes    x [M, N] f32 | bf16. group_sizes i32 [G], or absent: one group of M rows. Rows of x
//             lie in group order; rows past the sum of the sizes belong to no group.
//   Layout    a group starts in data at the next multiple of row_alignment and takes its size
//             rounded up to it; data [P, N] has room for all of them. Blocks are `block` elements
//             along `axis` (1: of a row; 0: of a column) or block x block, start at the group's
//             first row, and end early at its last row and at column N. scale has one value a
//             block: [P, ceil(N / block)] for axis 1; for axis 0 [S, N], for square blocks
//             [S, ceil(N / block)], where S >= the sum over groups of ceil(aligned size / block).
//   Padding   rows of no group, and their scales, are zero.
//   Numerics  amax is the largest size in the block. The block's multiplier m is applied in f32,
//             x * m is rounded to the element: to nearest, ties to even, or stochastically; sizes
//             above the largest element become it.
//     e8m0      scale by scale_mode, m = 1 / scale (exact). amax 0 gives code 0; codes end at 254.
//     f32       likewise a power of two (kFloat32: 1 / (max / amax)); 1 for amax 0.
//     e4m3      S = min(2688 / tensor amax, FLT_MAX), 1 where that is undefined or 0; scale =
//               e4m3(amax * (S * fl(1/6))), tensor_scale = 1 / S, m = min(1 / (scale * (1 / S)),
//               FLT_MAX): Transformer Engine's order of roundings. A scale of 0 is possible.
//               The tensor is all of x, or each group with amax_per_group.
//     NaN       makes the scale of its block NaN and every element of it, too; it does not enter a
//               tensor amax. Infinity saturates and counts in amax: the scale is 0xfe (e8m0), 1
//               (f32), 448 with S = 1 (e4m3). With `strict` it is treated as NaN.
//   Random    element (row, column) of group g draws word (column % 64) / 16 of Philox with counter
//             {64's block of column * 16 + column % 16, key[2] + row in group, key[3] + g, 0} and
//             key {key[0], key[1]}: a function of what the element is, not of who computes it.
//   Statistics  elements, saturated ones (size * m above the largest element), flushed ones (not 0
//             before, 0 after), the sum of squares of x, and of the error. Summed in a fixed order.
//   Memory    allocates nothing; scratch QuantizeScratchBytes(): O(groups + units).
//   Errors    kInvalidArgument: ranks, sizes, types or options that do not fit each other.
//             kOutOfRange: a negative group size, a sum above M, groups that need more than P rows.
//             kResourceExhausted: too little scratch. Results are untouched on error.
//   Threads   re-entrant; work is spread over context.executor; bits do not depend on it.
namespace anabranch {

inline constexpr int64_t kQuantizeStatistics = 5;

struct QuantizeOptions {
  QuantizedFormat format = QuantizedFormat::kMxfp8E4m3;
  int axis = 1;
  ScaleMode scale_mode = ScaleMode::kRceil;
  bool stochastic = false;
  bool strict = false;
  bool amax_per_group = false;
  int64_t row_alignment = 1;
};

struct QuantizeArgs {
  QuantizeOptions options;
  ConstTensorView x;            // [M, N] f32 | bf16
  ConstTensorView group_sizes;  // [G] i32, or absent
  ConstTensorView key;          // [4] i32: key words, first row, first group; read if stochastic
  TensorView data;              // [P, N] e4m3 | e5m2 | u8 (E2M1 codes, one a byte)
  TensorView scale;             // e8m0 | e4m3 | f32, as above
  TensorView tensor_scale;      // [G] f32; 1 for formats without
  TensorView group_offsets;     // [G + 1] i32: first row of each group in data
  TensorView statistics = {};   // [kQuantizeStatistics] f32, or absent
};
int64_t QuantizeScratchBytes(const QuantizeArgs& args);
Status Quantize(const QuantizeArgs& args, const Context& context);

// out[r] = the values of row r of x, for the same layout: element * scale in f32, times the
// tensor's; rounded once to out's type. Rows of no group become 0. Needs no scratch but a plan.
struct DequantizeArgs {
  QuantizeOptions options;       // format, axis and row_alignment are read
  ConstTensorView data;          // [P, N]
  ConstTensorView scale;         // as above
  ConstTensorView tensor_scale;  // [G] f32
  ConstTensorView group_sizes;   // [G] i32, or absent
  TensorView out;                // [M, N] f32 | bf16
};
int64_t DequantizeScratchBytes(const DequantizeArgs& args);
Status Dequantize(const DequantizeArgs& args, const Context& context);

// Quantize and Dequantize in one pass, without the codes: what a product sees of x.
//   out             [M, N] f32 | bf16 = element * scale, without the tensor's scale, so that bf16
//                   holds it exactly (|scale| permitting: bf16 ends at 2^-133); rows of no group
//                   are 0. row_alignment must be 1.
//   amax            where x is a part of larger tensors: their TensorAmax, one of each group's. The
//                   bits of x's rows are then those that the whole tensors' call gives them.
//   statistics      as of Quantize.
struct QuantizeDequantizeArgs {
  QuantizeOptions options;
  ConstTensorView x;
  ConstTensorView group_sizes;
  ConstTensorView key;
  TensorView out;
  TensorView tensor_scale;  // [G] f32
  TensorView statistics;
  ConstTensorView amax = {};  // [G] f32, or absent: those of x; read for e4m3 scales alone
};
int64_t QuantizeDequantizeScratchBytes(const QuantizeDequantizeArgs& args);
Status QuantizeDequantize(const QuantizeDequantizeArgs& args, const Context& context);

// The same twice from one reading of x: with blocks along options.axis, and along the other one, as
// fprop and wgrad need rows. Each copy has the bits of a call of its own. Rounding to nearest
// alone: two copies must not share their draws.
struct QuantizeDequantizeBothArgs {
  QuantizeDequantizeArgs one;
  TensorView other_out;              // type and shape of one.out
  TensorView other_statistics = {};  // as one.statistics: both or none
};
int64_t QuantizeDequantizeBothScratchBytes(const QuantizeDequantizeBothArgs& args);
Status QuantizeDequantizeBoth(const QuantizeDequantizeBothArgs& args, const Context& context);

// amax[g] = the largest size in group g, as a tensor scale sees it: NaN, and with options.strict
// infinity, count as 0. The largest of several calls' results is that of their rows together.
struct TensorAmaxArgs {
  QuantizeOptions options;      // strict is read
  ConstTensorView x;            // [M, N] f32 | bf16
  ConstTensorView group_sizes;  // [G] i32, or absent
  TensorView amax;              // [G] f32
};
int64_t TensorAmaxScratchBytes(const TensorAmaxArgs& args);
Status TensorAmax(const TensorAmaxArgs& args, const Context& context);

// out = transpose(H) x within every 16 rows of a group, where H = diag(s) Sylvester(16) / 4 with
// the fixed signs s of NVFP4's recipe; groups are aligned to row_alignment (a multiple of 16) as in
// Quantize, and their missing rows count as 0. H is orthogonal: products that contract over rows
// do not change when both operands are transformed.
//   Numerics  sums by the fast transform in f32 (strides 1, 2, 4, 8), times 1/4, rounded to bf16.
struct RandomHadamardArgs {
  int64_t row_alignment = 16;
  ConstTensorView x;            // [M, N] f32 | bf16
  ConstTensorView group_sizes;  // [G] i32, or absent
  TensorView out;               // [P, N] bf16
};
int64_t RandomHadamardScratchBytes(const RandomHadamardArgs& args);
Status RandomHadamard(const RandomHadamardArgs& args, const Context& context);

// The oracles: scalar, serial, block by block. Same contracts; they validate and need no scratch.
Status QuantizeReference(const QuantizeArgs& args);
Status DequantizeReference(const DequantizeArgs& args);
Status QuantizeDequantizeReference(const QuantizeDequantizeArgs& args);
Status QuantizeDequantizeBothReference(const QuantizeDequantizeBothArgs& args);
Status TensorAmaxReference(const TensorAmaxArgs& args);
Status RandomHadamardReference(const RandomHadamardArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_QUANTIZE_QUANTIZE_H_
