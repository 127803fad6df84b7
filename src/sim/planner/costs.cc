// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/costs.h"

#include <algorithm>
#include <cmath>

#include "ops/attention/attention_cost.h"
#include "ops/grouped_gemm/grouped_gemm_cost.h"
#include "ops/linear/linear_cost.h"
#include "ops/linear_cross_entropy/linear_cross_entropy_cost.h"
#include "ops/ragged_plan/ragged_plan_cost.h"
#include "ops/router/router_cost.h"

namespace anabranch::sim {
namespace {

constexpr DType kRow = DType::kBF16;  // activations
constexpr double kRowBytes = 2;

int64_t Whole(double value) { return std::llround(value); }

// Adds kernels to a Work with the hardware's achieved rates.
class Kernels {
 public:
  // `in_graph`: a partial graph covers this part of the layer.
  Kernels(const Request& request, bool in_graph)
      : hardware_(request.hardware),
        format_(static_cast<Format>(request.layout.format)),
        hbm_(hardware_.hbm_bandwidth * hardware_.hbm_efficiency) {
    const bool graphed = request.layout.graph == 2 || (request.layout.graph == 1 && in_graph);
    launch_ = graphed ? hardware_.graph_launch_seconds : hardware_.launch_seconds;
    host_ = graphed ? 0 : hardware_.layer_host_seconds;
  }

  // Host work that a part of a layer adds once per pass when no graph covers it.
  void AddHost(Work* work) const { work->fixed_seconds += host_; }

  // Memory-bound kernels that read and write `bytes` in all.
  void AddBytes(Work* work, double bytes, int kernels) const {
    work->hbm_seconds += hardware_.elementwise_passes * bytes / hbm_;
    work->fixed_seconds += kernels * launch_;
  }

  // One pass over y[rows, n] = x[rows, k] w[k, n].
  void AddLinear(Work* work, Pass pass, double rows, double k, double n) const {
    const double depth = pass == kForward ? k : pass == kDgrad ? n : rows;
    const double bytes = LinearBytes(Whole(rows), Whole(k), Whole(n), kRow, kRow, kRow) -
                         (kRowBytes - ElementBytes(format_)) * (rows * k + k * n);
    AddProduct(work, LinearFlops(Whole(rows), Whole(k), Whole(n)),
               pass == kWgrad ? bytes + 6 * k * n : bytes, Depth(depth) * Wgrad(pass));
  }

  // The same over `groups` experts, rows in all.
  void AddGrouped(Work* work, Pass pass, double rows, double groups, double k, double n) const {
    const GroupedGemmShape shape{Whole(rows), Whole(groups), Whole(groups), Whole(k), Whole(n)};
    double bytes = GroupedGemmBytes(shape, kRow, kRow, kRow) -
                   (kRowBytes - ElementBytes(format_)) * (rows * k + groups * k * n);
    // A weight gradient is added to an f32 sum.
    if (pass == kWgrad) {
      bytes = GroupedGemmWgradBytes(shape, kRow, kRow, DType::kF32) + 4 * groups * k * n;
    }
    const double each = rows / std::max(groups, 1.0);
    const double filled = each > 0 ? each / (each + hardware_.gemm_half_rows) : 1;
    const double depth = pass == kForward ? k : pass == kDgrad ? n : 1e30;
    AddProduct(work, GroupedGemmFlops(shape), bytes,
               Depth(depth) * Wgrad(pass) * filled * hardware_.grouped_efficiency);
  }

  // Reading bf16 and writing `copies` (row-wise, column-wise) in the low-precision format.
  void AddQuantize(Work* work, double elements, int copies) const {
    if (format_ == Format::kBf16) return;
    double bytes = kRowBytes + copies * ElementBytes(format_);
    // A scale over the whole tensor is known only after one pass over it.
    if (format_ == Format::kFp8 || format_ == Format::kNvfp4) bytes += kRowBytes;
    AddBytes(work, elements * bytes, 1);
  }

  void AddAttention(Work* work, double flops, double bytes, double efficiency, bool fp8) const {
    const double peak = fp8 ? hardware_.fp8_flops : hardware_.bf16_flops;
    AddRoof(work, flops, flops / (peak * efficiency), bytes / hbm_);
  }

 private:
  double Depth(double depth) const {
    return depth > 0 ? depth / (depth + hardware_.gemm_half_depth) : 1;
  }
  double Wgrad(Pass pass) const { return pass == kWgrad ? hardware_.wgrad_efficiency : 1; }

  void AddProduct(Work* work, double flops, double bytes, double efficiency) const {
    double rate = hardware_.bf16_flops * hardware_.gemm_efficiency;
    if (format_ == Format::kNvfp4) rate = hardware_.fp4_flops * hardware_.gemm_low_efficiency;
    if (format_ == Format::kMxfp8 || format_ == Format::kFp8 || format_ == Format::kFp8Block) {
      rate = hardware_.fp8_flops * hardware_.gemm_low_efficiency;
    }
    AddRoof(work, flops, flops / (rate * efficiency), bytes / hbm_);
  }

  void AddRoof(Work* work, double flops, double multiply, double move) const {
    work->flops += flops;
    work->fixed_seconds += launch_;
    if (multiply >= move) {
      work->sm_seconds += multiply;
    } else {
      work->hbm_seconds += move;
    }
  }

  const Hardware& hardware_;
  Format format_;
  double hbm_;
  double launch_;
  double host_;
};

// All three passes of one product; the inputs of each are quantised where they come from.
void AddLinearPasses(const Kernels& kernels, Passes* passes, double rows, double k, double n) {
  for (const Pass pass : {kForward, kDgrad, kWgrad}) {
    kernels.AddLinear(&(*passes)[pass], pass, rows, k, n);
  }
  kernels.AddQuantize(&(*passes)[kForward], rows * k, 2);
  kernels.AddQuantize(&(*passes)[kDgrad], rows * n, 2);
}

// A memory-bound step whose gradient reads once more than it does.
void AddBytesPasses(const Kernels& kernels, Passes* passes, double bytes, int count) {
  kernels.AddBytes(&(*passes)[kForward], bytes, count);
  kernels.AddBytes(&(*passes)[kDgrad], 1.5 * bytes, count);
}

AttentionProblem Core(const Request& request) {
  const Model& model = request.model;
  const Layout& layout = request.layout;
  return AttentionProblem{
      .batch = layout.microbatch,
      .length = layout.sequence,
      .heads = model.heads / layout.tp,
      .kv_heads = std::max<int64_t>((model.mla ? model.heads : model.kv_heads) / layout.tp, 1),
      .size = model.QueryKeySize(),
      .value_size = model.ValueSize(),
      .element_bytes = 2,
      .causal = true};
}

void AddCoreAttention(const Request& request, const Kernels& kernels, Costs* costs) {
  const AttentionProblem core = Core(request);
  const double share = 1.0 / static_cast<double>(request.layout.cp);
  const Hardware& hardware = request.hardware;
  const bool fp8 = request.layout.fp8_attention != 0;
  kernels.AddAttention(&costs->repeat.core_attention, AttentionFlops(core) * share,
                       AttentionBytes(core) * share, hardware.attention_efficiency, fp8);
  costs->attention[kForward] += costs->repeat.core_attention;
  // The method computes the scores once more: 2.5 times the forward work in all.
  kernels.AddAttention(&costs->attention[kDgrad], 1.25 * AttentionGradFlops(core) * share,
                       AttentionGradBytes(core) * share, hardware.attention_grad_efficiency, fp8);
}

// Projections of multi-head latent attention. The down projections are replicated over tp.
void AddLatent(const Request& request, const Kernels& kernels, Costs* costs) {
  const Model& model = request.model;
  const double tokens = GroupTokens(request.layout);
  const double hidden = static_cast<double>(model.hidden);
  const double heads = static_cast<double>(model.heads) / static_cast<double>(request.layout.tp);
  const double query = heads * static_cast<double>(model.QueryKeySize());
  const double key_value = heads * static_cast<double>(model.nope_size + model.value_size);
  const double q_rank = static_cast<double>(model.q_rank);
  const double kv_rank = static_cast<double>(model.kv_rank);
  const double latent = kv_rank + static_cast<double>(model.rope_size);
  Passes up;
  if (model.q_rank > 0) {
    AddLinearPasses(kernels, &costs->attention, tokens, hidden, q_rank);
    AddBytesPasses(kernels, &up, 2 * kRowBytes * tokens * q_rank, 1);
    AddLinearPasses(kernels, &up, tokens, q_rank, query);
  } else {
    AddLinearPasses(kernels, &up, tokens, hidden, query);
  }
  AddLinearPasses(kernels, &costs->attention, tokens, hidden, latent);
  AddBytesPasses(kernels, &up, 2 * kRowBytes * tokens * kv_rank, 1);
  AddLinearPasses(kernels, &up, tokens, kv_rank, key_value);
  // Rotary embedding, and the keys put together from their two parts.
  AddBytesPasses(kernels, &up, 2 * kRowBytes * tokens * 2 * query, 2);
  costs->repeat.latent = up[kForward];
  for (const Pass pass : {kForward, kDgrad, kWgrad}) costs->attention[pass] += up[pass];
}

void AddGroupedQuery(const Request& request, const Kernels& kernels, Costs* costs) {
  const Model& model = request.model;
  const double tokens = GroupTokens(request.layout);
  const double tp = static_cast<double>(request.layout.tp);
  const double size = static_cast<double>(model.head_size);
  const double query = static_cast<double>(model.heads) * size / tp;
  const double key = std::max(static_cast<double>(model.kv_heads) / tp, 1.0) * size;
  AddLinearPasses(kernels, &costs->attention, tokens, static_cast<double>(model.hidden),
                  query + 2 * key);
  const double steps = model.qk_norm ? 2 : 1;  // rotary embedding, norms of queries and keys
  AddBytesPasses(kernels, &costs->attention, steps * 2 * kRowBytes * tokens * (query + key), 2);
}

void AddAttentionBlock(const Request& request, const Kernels& kernels, Costs* costs) {
  const Model& model = request.model;
  const double hidden = static_cast<double>(model.hidden);
  const double rank_rows = RankTokens(request.layout) * hidden * kRowBytes;
  Passes norms;
  AddBytesPasses(kernels, &norms, 2 * 2 * rank_rows, 2);
  costs->repeat.norms = norms[kForward];
  for (const Pass pass : {kForward, kDgrad}) costs->attention[pass] += norms[pass];
  AddBytesPasses(kernels, &costs->attention, 2 * 3 * rank_rows, 2);  // two residual additions
  if (model.mla) {
    AddLatent(request, kernels, costs);
  } else {
    AddGroupedQuery(request, kernels, costs);
  }
  AddCoreAttention(request, kernels, costs);
  const int64_t heads = model.heads / request.layout.tp;
  const double value = static_cast<double>(heads * model.ValueSize());
  AddLinearPasses(kernels, &costs->attention, GroupTokens(request.layout), value, hidden);
  for (const Pass pass : {kForward, kDgrad}) kernels.AddHost(&costs->attention[pass]);
}

// A gated feed-forward of `width` columns on this rank; returns the part to repeat.
Work AddFeedForward(const Kernels& kernels, Passes* passes, double rows, double hidden,
                    double width) {
  Passes up;
  AddLinearPasses(kernels, &up, rows, hidden, 2 * width);
  AddBytesPasses(kernels, &up, 3 * kRowBytes * rows * width, 1);
  for (const Pass pass : {kForward, kDgrad, kWgrad}) (*passes)[pass] += up[pass];
  AddLinearPasses(kernels, passes, rows, width, hidden);
  return up[kForward];
}

void AddHead(const Request& request, const Kernels& kernels, Costs* costs) {
  const Model& model = request.model;
  const double tokens = GroupTokens(request.layout);
  const double columns =
      static_cast<double>(model.vocabulary) / static_cast<double>(request.layout.tp);
  Request bf16 = request;  // embedding and head stay in bf16 in every recipe
  bf16.layout.format = 0;
  const Kernels plain(bf16, true);
  const LinearCrossEntropyProblem problem{Whole(tokens), model.hidden, Whole(columns), 2, 2};
  const double rate = request.hardware.bf16_flops * request.hardware.gemm_efficiency;
  const double forward = LinearCrossEntropyFlops(problem);
  costs->head[kForward].flops += forward;
  costs->head[kForward].sm_seconds += forward / rate;
  costs->head[kDgrad].flops += LinearCrossEntropyGradFlops(problem) / 2;
  costs->head[kDgrad].sm_seconds += LinearCrossEntropyGradFlops(problem) / 2 / rate;
  costs->head[kWgrad].flops += LinearCrossEntropyGradFlops(problem) / 2;
  costs->head[kWgrad].sm_seconds += LinearCrossEntropyGradFlops(problem) / 2 / rate;
  // The logits are written, read for the sum and for the loss, and replaced by their gradient.
  plain.AddBytes(&costs->head[kForward], 4 * kRowBytes * tokens * columns, 3);
  const double rows = RankTokens(request.layout) * static_cast<double>(model.hidden) * kRowBytes;
  kernels.AddBytes(&costs->embedding, 2 * rows, 1);
}

void AddTransfers(const Request& request, Costs* costs) {
  const Layout& layout = request.layout;
  const Ports ports = MakePorts(request.hardware, layout.ranks);
  const double rows = GroupTokens(layout) * static_cast<double>(request.model.hidden) * kRowBytes;
  const Group tensor = MakeGroup(ports, layout.tp, 1);
  const Transfer one = AllGather(ports, tensor, rows);
  // Sequence parallelism: gather and scatter round attention and round the feed-forward.
  costs->tensor = Transfer{4 * one.scale_up, 4 * one.scale_out, 4 * one.latency};
  const double heads = request.model.mla ? static_cast<double>(request.model.heads)
                                         : static_cast<double>(request.model.kv_heads);
  const double key_value =
      heads / static_cast<double>(layout.tp) *
      static_cast<double>(request.model.QueryKeySize() + request.model.ValueSize());
  const Group context = MakeGroup(ports, layout.cp, layout.tp);
  const Transfer keys =
      AllGather(ports, context,
                kRowBytes * key_value * static_cast<double>(layout.microbatch * layout.sequence));
  costs->tensor.scale_up += keys.scale_up;
  costs->tensor.scale_out += keys.scale_out;
  costs->tensor.latency += keys.latency;
  const bool inside = layout.ranks <= ports.domain;
  costs->send = Send(ports, inside,
                     RankTokens(layout) * static_cast<double>(request.model.hidden) * kRowBytes);
}

// Copies of a token that leave its rank: over the scale-up port, and over the NIC.
std::pair<double, double> Copies(const Request& request, const Group& group) {
  const Model& model = request.model;
  const Layout& layout = request.layout;
  const double ranks = static_cast<double>(group.ranks);
  const double domains = ranks / static_cast<double>(group.local);
  const double away = 1 - 1 / ranks;
  const double remote = 1 - 1 / domains;
  const double choices = static_cast<double>(model.topk);
  if (!layout.dedup) return {choices * (away - remote), choices * remote};
  double visited = DistinctParts(model.experts, model.topk, domains);
  // Groups are chosen by the sum of their best scores, so each of them holds a chosen expert.
  if (layout.node_limit > 0) visited = std::min(visited, static_cast<double>(layout.node_limit));
  return {DistinctParts(model.experts, model.topk, ranks) * away, visited * remote};
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  sm_seconds += other.sm_seconds;
  hbm_seconds += other.hbm_seconds;
  fixed_seconds += other.fixed_seconds;
  flops += other.flops;
  return *this;
}

double GroupTokens(const Layout& layout) {
  return static_cast<double>(layout.microbatch * layout.sequence) / static_cast<double>(layout.cp);
}

double RankTokens(const Layout& layout) {
  return GroupTokens(layout) / static_cast<double>(layout.tp);
}

double ElementBytes(Format format) {
  switch (format) {
    case Format::kBf16:
      return 2;
    case Format::kFp8:
      return 1;
    case Format::kMxfp8:
      return 1 + 1.0 / 32;
    case Format::kFp8Block:
      return 1 + 4.0 / 128;
    case Format::kNvfp4:
      return 0.5 + 1.0 / 16;
  }
  return 2;
}

Costs MakeCosts(const Request& request) {
  const Model& model = request.model;
  const Kernels kernels(request, true);
  const double hidden = static_cast<double>(model.hidden);
  const double tp = static_cast<double>(request.layout.tp);
  const double tokens = GroupTokens(request.layout);
  Costs costs;
  AddAttentionBlock(request, kernels, &costs);
  if (model.dense_width > 0) {
    costs.repeat.dense_up = AddFeedForward(kernels, &costs.dense, tokens, hidden,
                                           static_cast<double>(model.dense_width) / tp);
  }
  const int64_t shared = model.shared_experts * model.expert_width;
  if (shared > 0) {
    costs.repeat.shared_up =
        AddFeedForward(kernels, &costs.shared, tokens, hidden, static_cast<double>(shared) / tp);
  }
  AddHead(request, kernels, &costs);
  if (model.mtp_layers > 0) AddLinearPasses(kernels, &costs.mtp, tokens, 2 * hidden, hidden / tp);
  AddTransfers(request, &costs);
  return costs;
}

ExpertCosts MakeExpertCosts(const Request& request, double rank_load, double domain_load) {
  const Model& model = request.model;
  const Layout& layout = request.layout;
  const Kernels kernels(request, false);
  const Kernels routing(request, true);
  const double tokens = RankTokens(layout);
  const double hidden = static_cast<double>(model.hidden);
  const double width = static_cast<double>(model.expert_width);
  const double sent = tokens * static_cast<double>(model.topk);
  const double rows = sent * rank_load;
  const double local = static_cast<double>(model.experts) / static_cast<double>(layout.ep);
  ExpertCosts costs;
  Passes* experts = &costs.experts;
  // Router: a thin product in bf16 and the selection.
  routing.AddBytes(&(*experts)[kForward],
                   static_cast<double>(RouterBytes(Whole(tokens), model.experts, model.topk, 4)) +
                       LinearBytes(Whole(tokens), model.hidden, model.experts, kRow, kRow, kRow),
                   4);
  routing.AddBytes(
      &(*experts)[kDgrad],
      static_cast<double>(RouterGradBytes(Whole(tokens), model.experts, model.topk, 4)) +
          2 * LinearBytes(Whole(tokens), model.hidden, model.experts, kRow, kRow, kRow),
      5);
  for (const Pass pass : {kForward, kDgrad, kWgrad}) {
    kernels.AddGrouped(&(*experts)[pass], pass, rows, local, width, hidden);
  }
  Passes up;
  for (const Pass pass : {kForward, kDgrad, kWgrad}) {
    kernels.AddGrouped(&up[pass], pass, rows, local, hidden, 2 * width);
  }
  kernels.AddQuantize(&up[kForward], rows * hidden, 2);
  kernels.AddQuantize(&up[kDgrad], rows * 2 * width, 2);
  kernels.AddBytes(&costs.activation, 3 * kRowBytes * rows * width, 1);
  kernels.AddQuantize(&costs.activation, rows * width, 2);
  kernels.AddBytes(&up[kDgrad], 1.5 * 3 * kRowBytes * rows * width, 1);
  kernels.AddQuantize(&up[kDgrad], rows * hidden, 2);
  costs.up = up[kForward];
  for (const Pass pass : {kForward, kDgrad, kWgrad}) (*experts)[pass] += up[pass];
  (*experts)[kForward] += costs.activation;
  if (!layout.fused_dispatch || layout.ep == 1) {
    const double move = static_cast<double>(
        GatherRowsBytes(Whole(rows), Whole(rows), model.hidden, 2) +
        CombineRowsBytes(Whole(tokens), model.topk, Whole(rows), model.hidden, 2));
    kernels.AddBytes(&(*experts)[kForward], move, 3);
    kernels.AddBytes(&(*experts)[kDgrad], move, 3);
  }
  for (const Pass pass : {kForward, kDgrad}) kernels.AddHost(&(*experts)[pass]);
  const Ports ports = MakePorts(request.hardware, layout.ranks);
  const Group group = MakeGroup(ports, layout.ep, 1);
  const auto [up_copies, out_copies] = Copies(request, group);
  const double plain = tokens * hidden * kRowBytes;
  const double low =
      tokens * hidden * (layout.low_wire ? ElementBytes(Format::kFp8Block) : kRowBytes);
  costs.dispatch =
      AllToAll(ports, group, low * up_copies * rank_load, low * out_copies * domain_load);
  costs.combine =
      AllToAll(ports, group, plain * up_copies * rank_load, plain * out_copies * domain_load);
  costs.combine_grad = costs.dispatch;
  costs.dispatch_grad = costs.combine;
  return costs;
}

LayerParameters CountParameters(const Model& model) {
  const double hidden = static_cast<double>(model.hidden);
  LayerParameters count;
  if (model.mla) {
    const double heads = static_cast<double>(model.heads);
    const double query = heads * static_cast<double>(model.QueryKeySize());
    const double rank = static_cast<double>(model.q_rank);
    count.attention = rank > 0 ? hidden * rank + rank + rank * query : hidden * query;
    const double kv = static_cast<double>(model.kv_rank);
    count.attention += hidden * (kv + static_cast<double>(model.rope_size)) + kv;
    count.attention += kv * heads * static_cast<double>(model.nope_size + model.value_size);
    count.attention += heads * static_cast<double>(model.value_size) * hidden;
  } else {
    const double size = static_cast<double>(model.head_size);
    const double query = static_cast<double>(model.heads) * size;
    const double key = static_cast<double>(model.kv_heads) * size;
    count.attention = 2 * hidden * (query + key) + (model.qk_norm ? 2 * size : 0);
  }
  count.attention += 2 * hidden;
  count.dense = 3 * hidden * static_cast<double>(model.dense_width);
  const double expert = 3 * hidden * static_cast<double>(model.expert_width);
  count.router_and_shared = hidden * static_cast<double>(model.experts) +
                            expert * static_cast<double>(model.shared_experts);
  count.expert = expert * static_cast<double>(model.experts);
  count.embedding = hidden * static_cast<double>(model.vocabulary);
  count.head = model.tied ? 0 : count.embedding;
  count.mtp = 2 * hidden * hidden + 3 * hidden;
  return count;
}

}  // namespace anabranch::sim
