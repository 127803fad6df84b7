// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_GROUPED_GEMM_GROUPED_GEMM_H_
#define ANABRANCH_OPS_GROUPED_GEMM_GROUPED_GEMM_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "ops/quantize/quantize.h"

// Products of a ragged batch of rows with one matrix per group. Rows lie in group order: group g
// holds the group_sizes[g] rows after those of groups 0 ... g - 1, and g(r) is the group of row r.
//   x [M, K], y [M, N], w [E, K, N]; group_sizes i32 [E]; all row-major and contiguous.
//   Types     multiplicands are bf16 or f32, the same for both, accumulated in f32; the result is
//             f32 or bf16 in every case. One mixture exists: rows (x, dy) in bf16 with w in f32;
//             w is then rounded to bf16, to nearest even, while it is packed.
//   Ragged    sizes may be 0. Rows past the sum of the sizes belong to no group: their results are
//             +0 and they contribute nothing, whatever they hold.
//   Numerics  |error| <= (n + 2) 2^-24 sum |a||b| over the n contracted terms, plus the rounding of
//             a bf16 result (2^-8 of it; subnormal bf16 multiplicands may count as 0). The bits do
//             not depend on the number of threads.
//   Memory    allocates nothing; needs GroupedGemm*ScratchBytes(args, num_workers) of caller
//             scratch, beside results and operands: O(workers x K) and, for bf16 rows of odd
//             length, one padded copy of them. Results must not overlap operands.
//   Errors    kInvalidArgument: ranks, sizes or types that do not fit each other. kOutOfRange: a
//             negative group size, or a sum above M. kResourceExhausted: too little scratch.
//             Results are untouched on error.
//   Threads   re-entrant; work is spread over context.executor.
namespace anabranch {

// y[r, :] = x[r, :] @ w[g(r)].
struct GroupedGemmArgs {
  ConstTensorView x;            // [M, K] bf16 | f32
  ConstTensorView w;            // [E, K, N] bf16 | f32
  ConstTensorView group_sizes;  // [E] i32
  TensorView y;                 // [M, N] f32 | bf16
};
int64_t GroupedGemmScratchBytes(const GroupedGemmArgs& args, int num_workers);
Status GroupedGemm(const GroupedGemmArgs& args, const Context& context);

// dx[r, :] = dy[r, :] @ transpose(w[g(r)]): the gradient of the rows.
struct GroupedGemmDgradArgs {
  ConstTensorView dy;           // [M, N] bf16 | f32
  ConstTensorView w;            // [E, K, N] bf16 | f32
  ConstTensorView group_sizes;  // [E] i32
  TensorView dx;                // [M, K] f32 | bf16
};
int64_t GroupedGemmDgradScratchBytes(const GroupedGemmDgradArgs& args, int num_workers);
Status GroupedGemmDgrad(const GroupedGemmDgradArgs& args, const Context& context);

// The same two with w in block-scaled low precision, as Quantize (ops/quantize/quantize.h) writes
// it for [E * K, N] in E groups of K rows with row_alignment 1: products are those of w's values
// without tensor scales, rounded to bf16 (exact but for extreme scales). They are decoded into the
// panels that the product reads; no copy of them exists elsewhere. Bits are those of the bf16
// product.
//   Types     args.w is u8 | e4m3 | e5m2 [E, K, N]; rows are bf16.
struct WeightCoding {
  QuantizedFormat format = QuantizedFormat::kMxfp8E4m3;
  int axis = 1;           // blocks lie along N (1) or K (0)
  ConstTensorView scale;  // [rows of blocks, columns of blocks]
};
struct GroupedGemmCodedArgs {
  GroupedGemmArgs product;
  WeightCoding coding;
};
int64_t GroupedGemmCodedScratchBytes(const GroupedGemmCodedArgs& args, int num_workers);
Status GroupedGemmCoded(const GroupedGemmCodedArgs& args, const Context& context);
struct GroupedGemmDgradCodedArgs {
  GroupedGemmDgradArgs product;
  WeightCoding coding;
};
int64_t GroupedGemmDgradCodedScratchBytes(const GroupedGemmDgradCodedArgs& args, int num_workers);
Status GroupedGemmDgradCoded(const GroupedGemmDgradCodedArgs& args, const Context& context);

// dw[g] = transpose(x_g) @ dy_g over the rows of group g: the gradient of the weights. An empty
// group's dw is written as exact +0.
//   Leaves    with num_leaves above 1 the rows of every group are cut into that many equal leaves
//             and summed by the tree of tile/tree_block.h; a power of two, at most 64.
//   Scale     where scale is given, every leaf's sum is multiplied by scale[g] and rounded before
//             sums are added: leaves of one sum may then lie on different ranks.
struct GroupedGemmWgradArgs {
  ConstTensorView x;            // [M, K] bf16 | f32
  ConstTensorView dy;           // [M, N], type of x
  ConstTensorView group_sizes;  // [E] i32
  TensorView dw;                // [E, K, N] f32 | bf16
  int64_t num_leaves = 1;
  ConstTensorView scale = {};  // [E] f32, or absent
};
int64_t GroupedGemmWgradScratchBytes(const GroupedGemmWgradArgs& args, int num_workers);
Status GroupedGemmWgrad(const GroupedGemmWgradArgs& args, const Context& context);

// The same three by plain loops, one f32 sum per element in ascending order (bf16 operands are
// multiplied as f32). Same contract without scratch; the oracle of tests and of no use otherwise.
Status GroupedGemmReference(const GroupedGemmArgs& args);
Status GroupedGemmDgradReference(const GroupedGemmDgradArgs& args);
Status GroupedGemmWgradReference(const GroupedGemmWgradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_GROUPED_GEMM_GROUPED_GEMM_H_
