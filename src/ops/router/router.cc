// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/router/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/router/scores.h"
#include "ops/router/select.h"

namespace anabranch {
namespace {

// Logits that one unit of work takes: about 20 us, well above the cost of handing it out.
constexpr int64_t kLogitsPerUnit = 16384;

Status ValidateOptions(const char* op, int64_t num_experts, const RouterOptions& options) {
  if (options.topk < 1 || options.topk > num_experts) {
    return InvalidArgument(op, ": topk=", options.topk, "; must be in [1, ", num_experts,
                           "], the number of experts");
  }
  if (options.num_groups < 1 || num_experts % options.num_groups != 0) {
    return InvalidArgument(op, ": num_groups=", options.num_groups, "; must divide the ",
                           num_experts, " experts");
  }
  if (options.group_topk < 1 || options.group_topk > options.num_groups) {
    return InvalidArgument(op, ": group_topk=", options.group_topk, "; must be in [1, ",
                           options.num_groups, "], the number of groups");
  }
  const int64_t group_size = num_experts / options.num_groups;
  if (options.topk > options.group_topk * group_size) {
    return InvalidArgument(
        op, ": topk=", options.topk, " exceeds the ", options.group_topk * group_size,
        " experts of group_topk=", options.group_topk, " groups of ", group_size);
  }
  const bool limited = options.group_topk < options.num_groups;
  if (options.group_score < 1 || (limited && options.group_score > group_size)) {
    return InvalidArgument(op, ": group_score=", options.group_score, "; must be in [1, ",
                           group_size, "], the size of a group");
  }
  return Status::Ok();
}

Status ValidateCommon(const char* op, const ConstTensorView& logits, const RouterOptions& options,
                      const Context& context) {
  if (logits.rank() != 2 || logits.dtype() == DType::kI32) {
    return InvalidArgument(op, ": logits is ", logits.ToString(), "; must be f32 or bf16 [T,E]");
  }
  ANABRANCH_RETURN_IF_ERROR(ValidateOptions(op, logits.size(1), options));
  if (context.executor == nullptr) return InvalidArgument(op, ": no executor");
  const int64_t needed = RouterScratchBytes(logits.size(1), context.executor->num_workers());
  if (context.scratch_bytes < needed) {
    return InvalidArgument(op, ": scratch has ", context.scratch_bytes, " bytes; needs ", needed);
  }
  return Status::Ok();
}

Status CheckView(const char* op, const char* name, const ConstTensorView& view, DType dtype,
                 int64_t rows, int64_t columns) {
  if (view.dtype() == dtype && view.HasShape({rows, columns})) return Status::Ok();
  return InvalidArgument(op, ": ", name, " is ", view.ToString(), "; must be ", Name(dtype), "[",
                         rows, ",", columns, "]");
}

// One worker's scratch; each array has E entries.
struct Scratch {
  float* x;         // logits
  float* scores;    // recomputed, in the gradient
  float* gradient;  // d_scores, then d_logits
  int32_t* keys;    // what experts are ranked by, as integers of the same order
  int32_t* group_keys;
  int32_t* picks;
  int32_t* candidates;
  PreciseScore* chosen;  // scores of the chosen experts
};

Scratch TakeScratch(ScratchArena& arena, int64_t num_experts) {
  return {arena.Take<float>(num_experts),   arena.Take<float>(num_experts),
          arena.Take<float>(num_experts),   arena.Take<int32_t>(num_experts),
          arena.Take<int32_t>(num_experts), arena.Take<int32_t>(num_experts),
          arena.Take<int32_t>(num_experts), arena.Take<PreciseScore>(num_experts)};
}

// Calls run(token, scratch) for every token.
template <typename Run>
void ForTokens(int64_t num_tokens, int64_t num_experts, Context& context, const Run& run) {
  ScratchArena sizes(nullptr);
  TakeScratch(sizes, num_experts);
  const int64_t pitch = sizes.used_bytes();
  const int64_t per_unit = std::max<int64_t>(1, kLogitsPerUnit / num_experts);
  context.executor->ParallelFor(CeilDiv(num_tokens, per_unit), [&](int64_t unit, int worker) {
    ScratchArena arena(static_cast<char*>(context.scratch) + worker * pitch);
    const Scratch scratch = TakeScratch(arena, num_experts);
    const int64_t end = std::min(num_tokens, (unit + 1) * per_unit);
    for (int64_t token = unit * per_unit; token < end; ++token) run(token, scratch);
  });
}

// A token's logits in f32: in place, or converted into the worker's scratch.
const float* Logits(const ConstTensorView& logits, int64_t token, float* converted) {
  const int64_t num_experts = logits.size(1);
  if (logits.dtype() == DType::kF32) return logits.as<float>() + token * num_experts;
  const BF16* row = logits.as<BF16>() + token * num_experts;
  for (int64_t e = 0; e < num_experts; ++e) converted[e] = ToFloat(row[e]);
  return converted;
}

// Sets the keys of all but the best groups to that of -infinity.
void MaskGroups(const RouterOptions& options, int64_t num_experts, const Scratch& scratch) {
  const int64_t size = num_experts / options.num_groups;
  for (int64_t group = 0; group < options.num_groups; ++group) {
    const float total =
        SumOfLargest(scratch.keys + group * size, size, options.group_score, scratch.picks);
    scratch.group_keys[group] = OrderKey(total);
  }
  SelectLargest(scratch.group_keys, options.num_groups, options.group_topk, scratch.candidates,
                scratch.picks);
  std::sort(scratch.picks, scratch.picks + options.group_topk);
  const int32_t masked = OrderKey(-std::numeric_limits<float>::infinity());
  const int32_t* next_kept = scratch.picks;
  const int32_t* const end = scratch.picks + options.group_topk;
  for (int64_t group = 0; group < options.num_groups; ++group) {
    if (next_kept != end && *next_kept == group) {
      ++next_kept;
    } else {
      std::fill_n(scratch.keys + group * size, size, masked);
    }
  }
}

// Weights before scaling: scores of the chosen experts over their sum, in f64. inverse_sum is 0
// where nothing can be normalised (all scores 0), which makes weights and gradients 0.
struct NormalizedWeights {
  const PreciseScore* scores;
  double inverse_sum = 0;

  double operator[](int64_t j) const {
    return inverse_sum == 0 ? 0 : scores[j].value * inverse_sum;
  }
};

NormalizedWeights Normalize(const RouterOptions& options, const float* x, const int32_t* ids,
                            const Scratch& scratch) {
  double shift = 0;
  if (IsSoftmax(options.score_function)) {
    shift = x[ids[0]];
    for (int64_t j = 1; j < options.topk; ++j) shift = std::fmax(shift, x[ids[j]]);
    if (shift == -std::numeric_limits<double>::infinity()) return {scratch.chosen};
  }
  double sum = 0;
  for (int64_t j = 0; j < options.topk; ++j) {
    scratch.chosen[j] = ComputePreciseScore(options.score_function, x[ids[j]], shift);
    sum += scratch.chosen[j].value;
  }
  return {scratch.chosen, sum == 0 ? 0 : 1 / sum};
}

bool IsNormalized(const RouterOptions& options) {
  return options.normalize || options.score_function == ScoreFunction::kSoftmaxTopk;
}

void RouteToken(const RouterArgs& args, int64_t token, const Scratch& scratch) {
  const RouterOptions& options = args.options;
  const int64_t num_experts = args.logits.size(1);
  float* scores = args.scores.as<float>() + token * num_experts;
  int32_t* ids = args.experts.as<int32_t>() + token * options.topk;
  float* weights = args.weights.as<float>() + token * options.topk;
  const float* x = Logits(args.logits, token, scratch.x);
  ComputeScores(options.score_function, x, num_experts, scores);

  const bool by_logit = options.score_function == ScoreFunction::kSoftmaxTopk;
  const float* ranked = by_logit ? x : scores;
  if (args.expert_bias.has_value()) {
    const float* bias = args.expert_bias.as<float>();
    for (int64_t e = 0; e < num_experts; ++e) scratch.keys[e] = OrderKey(ranked[e] + bias[e]);
  } else {
    for (int64_t e = 0; e < num_experts; ++e) scratch.keys[e] = OrderKey(ranked[e]);
  }
  if (options.group_topk < options.num_groups) MaskGroups(options, num_experts, scratch);
  SelectLargest(scratch.keys, num_experts, options.topk, scratch.candidates, ids);

  if (!IsNormalized(options)) {
    for (int64_t j = 0; j < options.topk; ++j) {
      weights[j] = scores[ids[j]] * options.scaling_factor;
    }
    return;
  }
  const NormalizedWeights normalized = Normalize(options, x, ids, scratch);
  for (int64_t j = 0; j < options.topk; ++j) {
    const double weight = normalized[j] * options.scaling_factor;
    // The NaN of a logit that was not chosen still marks the scores of a softmax, and so the
    // weights.
    weights[j] = std::isnan(scores[ids[j]]) ? scores[ids[j]] : static_cast<float>(weight);
  }
}

// Adds the gradient through normalised weights w = v / sum(v), all times scaling:
// d_logit_j = w_j (d_j - sum_i w_i d_i) dlog(v_j).
void AddNormalizedGrad(const RouterOptions& options, const float* x, const int32_t* ids,
                       const float* d_weights, const Scratch& scratch) {
  const NormalizedWeights normalized = Normalize(options, x, ids, scratch);
  double mean = 0;
  for (int64_t j = 0; j < options.topk; ++j) mean += normalized[j] * d_weights[j];
  for (int64_t j = 0; j < options.topk; ++j) {
    const double weight = normalized[j];
    if (weight == 0) continue;
    const double slope = weight * normalized.scores[j].log_slope * options.scaling_factor;
    scratch.gradient[ids[j]] += static_cast<float>(slope * (d_weights[j] - mean));
  }
}

void GradToken(const RouterGradArgs& args, int64_t token, const Scratch& scratch) {
  const RouterOptions& options = args.options;
  const int64_t num_experts = args.logits.size(1);
  const int32_t* ids = args.experts.as<int32_t>() + token * options.topk;
  const float* d_weights = args.d_weights.as<float>() + token * options.topk;
  float* gradient = scratch.gradient;
  const float* x = Logits(args.logits, token, scratch.x);
  ComputeScores(options.score_function, x, num_experts, scratch.scores);
  std::copy_n(args.d_scores.as<float>() + token * num_experts, num_experts, gradient);
  if (!IsNormalized(options)) {
    for (int64_t j = 0; j < options.topk; ++j) {
      gradient[ids[j]] += d_weights[j] * options.scaling_factor;
    }
  }
  ComputeScoresGrad(options.score_function, x, scratch.scores, gradient, num_experts, gradient);
  if (IsNormalized(options)) AddNormalizedGrad(options, x, ids, d_weights, scratch);
  if (args.d_logits.dtype() == DType::kF32) {
    std::copy_n(gradient, num_experts, args.d_logits.as<float>() + token * num_experts);
    return;
  }
  BF16* row = args.d_logits.as<BF16>() + token * num_experts;
  for (int64_t e = 0; e < num_experts; ++e) row[e] = ToBF16(gradient[e]);
}

}  // namespace

Status ParseScoreFunction(std::string_view name, ScoreFunction* function) {
  const struct {
    const char* name;
    ScoreFunction function;
  } known[] = {{"softmax", ScoreFunction::kSoftmax},
               {"softmax_topk", ScoreFunction::kSoftmaxTopk},
               {"sigmoid", ScoreFunction::kSigmoid},
               {"sqrtsoftplus", ScoreFunction::kSqrtSoftplus}};
  for (const auto& entry : known) {
    if (name == entry.name) {
      *function = entry.function;
      return Status::Ok();
    }
  }
  return InvalidArgument("router: score_function=", name,
                         "; must be softmax, softmax_topk, sigmoid or sqrtsoftplus");
}

int64_t RouterScratchBytes(int64_t num_experts, int num_workers) {
  ScratchArena arena(nullptr);
  TakeScratch(arena, num_experts);
  return arena.used_bytes() * num_workers;
}

Status Router(const RouterArgs& args, Context& context) {
  constexpr const char* kOp = "router";
  ANABRANCH_RETURN_IF_ERROR(ValidateCommon(kOp, args.logits, args.options, context));
  const int64_t num_tokens = args.logits.size(0);
  const int64_t num_experts = args.logits.size(1);
  const int64_t topk = args.options.topk;
  if (args.expert_bias.has_value() &&
      (!args.expert_bias.HasShape({num_experts}) || args.expert_bias.dtype() != DType::kF32)) {
    return InvalidArgument(kOp, ": expert_bias is ", args.expert_bias.ToString(),
                           "; must be f32[E] to fit logits ", args.logits.ToString());
  }
  ANABRANCH_RETURN_IF_ERROR(CheckView(kOp, "experts", args.experts, DType::kI32, num_tokens, topk));
  ANABRANCH_RETURN_IF_ERROR(CheckView(kOp, "weights", args.weights, DType::kF32, num_tokens, topk));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView(kOp, "scores", args.scores, DType::kF32, num_tokens, num_experts));
  ForTokens(num_tokens, num_experts, context,
            [&](int64_t token, const Scratch& scratch) { RouteToken(args, token, scratch); });
  return Status::Ok();
}

Status RouterGrad(const RouterGradArgs& args, Context& context) {
  constexpr const char* kOp = "router_grad";
  ANABRANCH_RETURN_IF_ERROR(ValidateCommon(kOp, args.logits, args.options, context));
  const int64_t num_tokens = args.logits.size(0);
  const int64_t num_experts = args.logits.size(1);
  const int64_t topk = args.options.topk;
  ANABRANCH_RETURN_IF_ERROR(CheckView(kOp, "experts", args.experts, DType::kI32, num_tokens, topk));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView(kOp, "d_weights", args.d_weights, DType::kF32, num_tokens, topk));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView(kOp, "d_scores", args.d_scores, DType::kF32, num_tokens, num_experts));
  ANABRANCH_RETURN_IF_ERROR(
      CheckView(kOp, "d_logits", args.d_logits, args.logits.dtype(), num_tokens, num_experts));
  // Read before any worker starts, so that a foreign id can never become an address.
  const int32_t* experts = args.experts.as<int32_t>();
  for (int64_t slot = 0; slot < num_tokens * topk; ++slot) {
    if (experts[slot] < 0 || experts[slot] >= num_experts) {
      return OutOfRange(kOp, ": experts[token=", slot / topk, ", slot=", slot % topk,
                        "]=", experts[slot], " is out of range; must be in [0, ", num_experts, ")");
    }
  }
  ForTokens(num_tokens, num_experts, context,
            [&](int64_t token, const Scratch& scratch) { GradToken(args, token, scratch); });
  return Status::Ok();
}

}  // namespace anabranch
