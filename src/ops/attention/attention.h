// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ATTENTION_ATTENTION_H_
#define ANABRANCH_OPS_ATTENTION_ATTENTION_H_

#include <cstdint>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {

// Attention of every head n of every sequence b, with key and value head m = n / (N / M):
//   score[s, t]  = scale * <query[b,s,n], key[b,t,m]>     for each t that s sees
//   output[b,s,n] = sum over t of softmax(score[s, :])[t] * value[b,t,m]
// s sees t when t <= s (if causal) and when both carry the same segment id, which is not 0.
//
//   query [B,S,N,D] bf16|f32   key [B,S,M,D]   value [B,S,M,Dv]   of one type; N a multiple of M
//   segment_ids [B,S] i32, 0 = padding; absent (or without elements): everything is one segment
//   output [B,S,N,Dv] as query   log_sum_exp [B,N,S] f32: ln of the sum of e^score
//   Empty     a position that sees nothing (padding) has output 0 and log_sum_exp -infinity.
//   Numerics  scores, softmax and sums in f32; shares of the softmax are rounded to the type of
//             value before they multiply it, the output is rounded once. Bitwise equal for any
//             number of threads. A NaN in a query shows in that query's output alone, a NaN in a
//             key in the outputs that see it; one in a value may also reach positions near by.
//   Memory    linear in S: nothing of size [S,S] exists. Allocates nothing; the scratch is one copy
//             of value and some hundred kilobytes a worker.
//   Layout    row-major. Outputs must not overlap inputs or each other.
//   Errors    kInvalidArgument (shapes, types, scratch). Outputs are untouched on error.
//   Threads   re-entrant; work is spread over context.executor.
// Blocks of keys that no position of a block of queries sees cost nothing. Method: online softmax
// over blocks (arXiv 1805.02867, arXiv 2205.14135).
struct AttentionArgs {
  float scale = 1;
  bool causal = true;
  ConstTensorView query;
  ConstTensorView key;
  ConstTensorView value;
  ConstTensorView segment_ids;
  TensorView output;
  TensorView log_sum_exp;
};
Status Attention(const AttentionArgs& args, Context& context);

// The gradient, from output_grad [B,S,N,Dv] and what the forward call was given and returned:
//   query_grad [B,S,N,D]   key_grad [B,S,M,D]   value_grad [B,S,M,Dv]   in query's type
//   Numerics  scores are computed again. Shares and the gradients of scores are rounded to the type
//             of query before they multiply; sums in f32, in ascending order of the other position
//             (keys: heads of the group ascending, then queries), rounded once. Bitwise equal for
//             any number of threads.
//   Empty     a position that sees nothing gets gradient 0; so does one that nothing sees.
//   Memory    linear in S: some f32 copies of one key and value head a worker.
struct AttentionGradArgs {
  float scale = 1;
  bool causal = true;
  ConstTensorView query;
  ConstTensorView key;
  ConstTensorView value;
  ConstTensorView segment_ids;
  ConstTensorView output;
  ConstTensorView log_sum_exp;
  ConstTensorView output_grad;
  TensorView query_grad;
  TensorView key_grad;
  TensorView value_grad;
};
Status AttentionGrad(const AttentionGradArgs& args, Context& context);

// Scratch for a call with these arguments (only shapes are read; ranks must be right).
int64_t AttentionScratchBytes(const AttentionArgs& args, int num_workers);
int64_t AttentionGradScratchBytes(const AttentionGradArgs& args, int num_workers);

// The oracle: scalar, serial, in double; only results are rounded. The gradient reads neither
// output nor log_sum_exp.
Status AttentionReference(const AttentionArgs& args);
Status AttentionGradReference(const AttentionGradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ATTENTION_ATTENTION_H_
