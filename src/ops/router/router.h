// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_ROUTER_ROUTER_H_
#define ANABRANCH_OPS_ROUTER_ROUTER_H_

#include <cstdint>
#include <string_view>

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {

enum class ScoreFunction {
  kSoftmax,       // over all experts, then top-k
  kSoftmaxTopk,   // top-k of the logits; weights are the softmax over those k
  kSigmoid,       // 1 / (1 + exp(-logit))
  kSqrtSoftplus,  // sqrt(log(1 + exp(logit)))
};

// "softmax", "softmax_topk", "sigmoid" or "sqrtsoftplus".
Status ParseScoreFunction(std::string_view name, ScoreFunction* function);

struct RouterOptions {
  ScoreFunction score_function = ScoreFunction::kSoftmax;
  int64_t topk = 1;
  int64_t num_groups = 1;   // equal, contiguous groups of experts
  int64_t group_topk = 1;   // a token chooses from its group_topk best groups
  int64_t group_score = 2;  // a group's score is the sum of its group_score best biased scores
  bool normalize = false;   // divide a token's weights by their sum
  float scaling_factor = 1.0f;
};

struct RouterArgs {
  ConstTensorView logits;       // [T, E] f32 | bf16
  ConstTensorView expert_bias;  // [E] f32, or absent: 0
  TensorView experts;           // [T, topk] i32
  TensorView weights;           // [T, topk] f32
  TensorView scores;            // [T, E] f32
  RouterOptions options;
};

// Chooses topk of E experts for each of T tokens.
//   scores    of all experts, without bias; for both softmax kinds the softmax over E.
//   experts   the topk largest of ranked = (scores, or logits for kSoftmaxTopk) + expert_bias,
//   largest
//             first, after the groups that are not among the group_topk best were set to -infinity.
//             Ties go to the lowest index; a NaN ranks above every number. Ids are distinct and in
//             range.
//   weights   score of each chosen expert (kSoftmaxTopk: softmax over the chosen logits), divided
//   by
//             their sum if normalize (unless that is 0), times scaling_factor. The bias never
//             weighs.
//   Empty     T = 0 returns OK and writes nothing.
//   Numerics  scores in f32, relative error <= 2^-21 (softmax: (E/8 + 16) 2^-24); normalised
//   weights are
//             computed in f64, so they sum to 1 also where every score is tiny. A NaN logit reaches
//             the results of its own token only. The same bits for any number of threads.
//   Memory    allocates nothing; needs RouterScratchBytes of scratch.
//   Errors    kInvalidArgument: shape, type, scratch, or groups that cannot give topk experts.
//   Threads   re-entrant; work is spread over context.executor.
Status Router(const RouterArgs& args, Context& context);

struct RouterGradArgs {
  ConstTensorView logits;     // [T, E] f32 | bf16
  ConstTensorView experts;    // [T, topk] i32, from Router
  ConstTensorView d_weights;  // [T, topk] f32
  ConstTensorView d_scores;   // [T, E] f32
  TensorView d_logits;        // [T, E] the type of logits
  RouterOptions options;
};

// The gradient of Router: d_logits of sum(d_weights * weights) + sum(d_scores * scores), with the
// choice of experts held fixed. Scores are recomputed. Contract as Router; also kOutOfRange for an
// expert id outside [0, E).
Status RouterGrad(const RouterGradArgs& args, Context& context);

// For both operations.
int64_t RouterScratchBytes(int64_t num_experts, int num_workers);

// The scalar oracles, in f64; arguments taken as valid.
void RouterReference(const RouterArgs& args);
void RouterGradReference(const RouterGradArgs& args);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_ROUTER_ROUTER_H_
