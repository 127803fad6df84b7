// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/memory.h"

#include <algorithm>
#include <cmath>

namespace anabranch::sim {
namespace {

constexpr double kRowBytes = 2;  // bf16

Format FormatOf(const Request& request) { return static_cast<Format>(request.layout.format); }

// A saved input of a product: the copy that the weight gradient reads.
double InputBytes(const Request& request) { return ElementBytes(FormatOf(request)); }

bool Gone(int64_t mask, Saved tensor) { return (mask & (tensor | kFull)) != 0; }

Activations AttentionPart(const Request& request, int64_t mask) {
  const Model& model = request.model;
  const double rank = RankTokens(request.layout);
  const double tokens = GroupTokens(request.layout);
  const double heads = static_cast<double>(model.heads) / static_cast<double>(request.layout.tp);
  const double hidden = static_cast<double>(model.hidden);
  const double in = InputBytes(request);
  const double attention_bytes = request.layout.fp8_attention ? 1 : kRowBytes;
  Activations saved;
  saved.residual = (mask & kFull ? 1 : 2) * rank * hidden * kRowBytes;
  if (!Gone(mask, kNorm)) saved.norm = 2 * rank * hidden * in;
  const double value = heads * static_cast<double>(model.ValueSize());
  const double query = heads * static_cast<double>(model.QueryKeySize());
  if (model.mla) {
    // Latents before and after their norms, unless everything is computed again.
    const double ranks = static_cast<double>(model.q_rank + model.kv_rank);
    if (!(mask & kFull)) saved.latent += tokens * ranks * (kRowBytes + in);
    if (!Gone(mask, kLatent)) saved.latent += tokens * (2 * query + value) * attention_bytes;
  } else if (!Gone(mask, kLatent)) {
    const double keys =
        std::max(static_cast<double>(model.kv_heads) / static_cast<double>(request.layout.tp),
                 1.0) *
        static_cast<double>(model.head_size);
    // Queries and keys again before their norms, in one array with the values.
    saved.latent = tokens * (query + 2 * keys) * attention_bytes;
    if (model.qk_norm) saved.latent += tokens * (query + keys) * kRowBytes;
  }
  if (!Gone(mask, kAttention)) {
    saved.attention = tokens * (value * kRowBytes + 4 * heads);
    if (in < kRowBytes) saved.attention += tokens * value * in;  // the output product's own copy
  }
  return saved;
}

// Gate and up in bf16, the activation as the down product's input.
double GatedBytes(const Request& request, double rows, double width) {
  return rows * width * (2 * kRowBytes + InputBytes(request));
}

// Weights in the form the products read: low-precision recipes keep both orientations.
double WeightBytes(const Request& request) {
  const Format format = FormatOf(request);
  return format == Format::kBf16 ? kRowBytes : std::max(kRowBytes, 2 * ElementBytes(format));
}

double RowsFactor(const Request& request, double rows) {
  return request.layout.dispatch_factor > 0 ? request.layout.dispatch_factor : rows;
}

double LayerRows(const Request& request) {
  return RankTokens(request.layout) * static_cast<double>(request.model.topk);
}

// The busiest rank's rows in this chunk's expert layers: sum over its layers of load over the mean.
std::vector<double> ChunkRows(const Request& request, const Chunk& chunk,
                              const std::vector<LayerLoad>& loads) {
  const int64_t first = std::max(chunk.first, request.model.dense_layers);
  std::vector<double> best;
  double most = -1;
  for (int64_t rank = 0; rank < request.layout.ep; ++rank) {
    std::vector<double> rows;
    double sum = 0;
    for (int64_t layer = first; layer < chunk.last; ++layer) {
      const LayerLoad& load = loads[static_cast<size_t>(layer - request.model.dense_layers)];
      const double noise = load.rank - *std::max_element(load.ranks.begin(), load.ranks.end());
      rows.push_back(load.ranks[static_cast<size_t>(rank)] + noise);
      sum += rows.back();
    }
    if (sum > most) {
      most = sum;
      best = rows;
    }
  }
  return best;
}

Activations ChunkActivations(const Request& request, const Chunk& chunk,
                             const std::vector<LayerLoad>& loads) {
  const int64_t mask = request.layout.recompute | request.layout.offload;
  const std::vector<double> rows = ChunkRows(request, chunk, loads);
  Activations sum;
  size_t at = 0;
  for (int64_t layer = chunk.first; layer < chunk.last; ++layer) {
    if (layer < request.model.dense_layers) {
      sum += DenseLayer(request, mask);
    } else {
      sum += ExpertLayer(request, mask, RowsFactor(request, rows[at++]));
    }
  }
  if (chunk.head && request.model.mtp_layers > 0) {
    Activations block = ExpertLayer(request, mask, RowsFactor(request, 1));
    block.residual += 2 * block.residual;  // two inputs joined by a projection
    for (int64_t i = 0; i < request.model.mtp_layers; ++i) sum += block;
  }
  return sum;
}

void AddParameters(const Request& request, const Chunk& chunk, StageMemory* memory) {
  const Layout& layout = request.layout;
  const ChunkParameters count = CountChunk(request, chunk);
  memory->parameters += count.plain + count.experts;
  const double plain_shards = PlainShards(layout);
  const double expert_shards = ExpertShards(layout);
  const bool fsdp = layout.sharding == static_cast<int64_t>(Sharding::kFsdp);
  const bool zero = layout.sharding != static_cast<int64_t>(Sharding::kNone);
  const double held = fsdp ? count.plain / plain_shards + count.experts / expert_shards
                           : count.plain + count.experts;
  memory->weights += held * WeightBytes(request);
  memory->gradients += held * layout.gradient_bytes;
  if (layout.offload & kOptimizer) return;
  memory->optimizer +=
      layout.optimizer_bytes * (zero ? count.plain / plain_shards + count.experts / expert_shards
                                     : count.plain + count.experts);
}

void AddWorkspace(const Request& request, const Chunk& chunk, const std::vector<LayerLoad>& loads,
                  StageMemory* memory) {
  const Model& model = request.model;
  const Layout& layout = request.layout;
  const double hidden = static_cast<double>(model.hidden);
  const double tp = static_cast<double>(layout.tp);
  const LayerParameters count = CountParameters(model);
  const bool experts = chunk.last > std::max(chunk.first, model.dense_layers);
  double most = 1;
  for (const LayerLoad& load : loads) most = std::max(most, load.rank);
  const double rows = experts ? LayerRows(request) * RowsFactor(request, most) : 0;
  // Gradients of one layer's rows while it runs backward.
  double transient = rows * kRowBytes * (hidden + 3 * static_cast<double>(model.expert_width));
  double dummy = 0;
  if (chunk.head) {
    const double logits =
        GroupTokens(layout) * static_cast<double>(model.vocabulary) / tp * kRowBytes;
    transient = std::max(transient, logits * static_cast<double>(1 + model.mtp_layers));
    // Fused accumulation hands the framework a dummy gradient of the largest weight's shape.
    dummy = kRowBytes * std::max(count.head, count.embedding) / tp;
  }
  memory->workspace = std::max(memory->workspace, transient + dummy);
  const double buffers = layout.overlap ? 2 : 1;
  if (layout.ep > 1)
    memory->dispatch = std::max(memory->dispatch, buffers * rows * hidden * kRowBytes);
  if (layout.sharding == static_cast<int64_t>(Sharding::kFsdp)) {
    // The layer in use and the next one, and one layer's whole gradient.
    const double block = count.attention + count.router_and_shared;
    const double layer = std::max(block / tp + count.expert / static_cast<double>(layout.ep),
                                  (count.attention + count.dense) / tp);
    memory->gathered = std::max(memory->gathered, layer * (2 * kRowBytes + layout.gradient_bytes));
  }
  if (layout.pp > 1) memory->communication = 4 * RankTokens(layout) * hidden * kRowBytes;
}

// Walks the activations' lifetimes in time and keeps the state at the highest sum.
void FindPeak(const std::vector<Activations>& unit, const Program& program,
              const Schedule& schedule, std::vector<StageMemory>* stages) {
  struct Change {
    double time;
    bool begins;
    int32_t position;
  };
  std::vector<std::vector<Change>> changes(stages->size());
  for (const Lifetime& life : program.lifetimes) {
    changes[life.stage].push_back({schedule.start[life.from], true, life.position});
    changes[life.stage].push_back({schedule.end[life.to], false, life.position});
  }
  for (size_t stage = 0; stage < stages->size(); ++stage) {
    // What ends at an instant is freed before what begins then.
    std::sort(changes[stage].begin(), changes[stage].end(), [](const Change& a, const Change& b) {
      return a.time != b.time ? a.time < b.time : a.begins < b.begins;
    });
    std::vector<int64_t> alive(unit.size(), 0);
    std::vector<int64_t> best(unit.size(), 0);
    double now = 0;
    double most = 0;
    for (const Change& change : changes[stage]) {
      alive[change.position] += change.begins ? 1 : -1;
      now += (change.begins ? 1 : -1) * unit[change.position].Sum();
      if (now <= most) continue;
      most = now;
      best = alive;
      (*stages)[stage].peak_seconds = change.time;
    }
    for (size_t position = 0; position < unit.size(); ++position) {
      for (int64_t i = 0; i < best[position]; ++i) (*stages)[stage].activations += unit[position];
    }
  }
}

}  // namespace

double Activations::Sum() const {
  return residual + norm + latent + attention + dense_ffn + shared_expert + router + expert_input +
         expert_hidden + expert_activation;
}

Activations& Activations::operator+=(const Activations& other) {
  residual += other.residual;
  norm += other.norm;
  latent += other.latent;
  attention += other.attention;
  dense_ffn += other.dense_ffn;
  shared_expert += other.shared_expert;
  router += other.router;
  expert_input += other.expert_input;
  expert_hidden += other.expert_hidden;
  expert_activation += other.expert_activation;
  return *this;
}

double StageMemory::Sum() const {
  return weights + gradients + optimizer + gathered + workspace + dispatch + communication +
         activations.Sum();
}

Activations DenseLayer(const Request& request, int64_t mask) {
  Activations saved = AttentionPart(request, mask);
  if (!Gone(mask, kDenseFfn)) {
    const double width =
        static_cast<double>(request.model.dense_width) / static_cast<double>(request.layout.tp);
    saved.dense_ffn = GatedBytes(request, GroupTokens(request.layout), width);
  }
  return saved;
}

Activations ExpertLayer(const Request& request, int64_t mask, double rows) {
  const Model& model = request.model;
  Activations saved = AttentionPart(request, mask);
  const double tokens = RankTokens(request.layout);
  const double all = LayerRows(request) * rows;
  const double width = static_cast<double>(model.expert_width);
  if (!Gone(mask, kShared)) {
    const double shared =
        static_cast<double>(model.shared_experts) * width / static_cast<double>(request.layout.tp);
    saved.shared_expert = GatedBytes(request, GroupTokens(request.layout), shared);
  }
  // f32 logits and scores, ids and weights.
  saved.router =
      tokens * (8 * static_cast<double>(model.experts) + 8 * static_cast<double>(model.topk));
  if (!Gone(mask, kExpertInput)) {
    saved.expert_input = all * static_cast<double>(model.hidden) * InputBytes(request);
  }
  if (!Gone(mask, kExpertHidden)) saved.expert_hidden = all * 2 * width * kRowBytes;
  if (!Gone(mask, kExpertActivation)) saved.expert_activation = all * width * InputBytes(request);
  return saved;
}

double OffloadedBytes(const Request& request, bool expert_layer, double rows) {
  const int64_t recomputed = request.layout.recompute;
  const int64_t both = recomputed | (request.layout.offload & ~int64_t{kFull});
  if (expert_layer) {
    const double factor = RowsFactor(request, rows);
    return ExpertLayer(request, recomputed, factor).Sum() -
           ExpertLayer(request, both, factor).Sum();
  }
  return DenseLayer(request, recomputed).Sum() - DenseLayer(request, both).Sum();
}

ChunkParameters CountChunk(const Request& request, const Chunk& chunk) {
  const Model& model = request.model;
  const LayerParameters count = CountParameters(model);
  const double tp = static_cast<double>(request.layout.tp);
  const double ep = static_cast<double>(request.layout.ep);
  const int64_t dense =
      std::max<int64_t>(std::min(chunk.last, model.dense_layers) - chunk.first, 0);
  int64_t experts = chunk.last - chunk.first - dense;
  ChunkParameters sum;
  if (chunk.embedding) sum.plain += count.embedding / tp;
  if (chunk.head) {
    sum.plain += count.head / tp + static_cast<double>(model.hidden);
    // With several stages the last keeps its own copy of the embedding for the extra block.
    if (model.mtp_layers > 0 && !chunk.embedding) sum.plain += count.embedding / tp;
    sum.plain += static_cast<double>(model.mtp_layers) * count.mtp / tp;
    experts += model.mtp_layers;
  }
  const double blocks = static_cast<double>(dense + experts);
  sum.plain += (blocks * count.attention + static_cast<double>(dense) * count.dense +
                static_cast<double>(experts) * count.router_and_shared) /
               tp;
  sum.experts = static_cast<double>(experts) * count.expert / ep;
  return sum;
}

double PlainShards(const Layout& layout) { return static_cast<double>(layout.dp() * layout.cp); }

double ExpertShards(const Layout& layout) {
  return static_cast<double>(std::max<int64_t>(layout.edp(), 1));
}

std::vector<StageMemory> MakeMemory(const Request& request, const std::vector<Chunk>& chunks,
                                    const std::vector<LayerLoad>& loads, const Program& program,
                                    const Schedule& schedule) {
  std::vector<StageMemory> stages(static_cast<size_t>(request.layout.pp));
  std::vector<Activations> unit;
  const bool dual = request.layout.pipeline == static_cast<int64_t>(Pipeline::kDualPipe);
  for (size_t position = 0; position < chunks.size(); ++position) {
    const Chunk& chunk = chunks[position];
    unit.push_back(ChunkActivations(request, chunk, loads));
    for (int32_t direction = 0; direction < (dual ? 2 : 1); ++direction) {
      const int32_t stage = StageOf(request.layout, static_cast<int32_t>(position), direction);
      AddParameters(request, chunk, &stages[stage]);
      AddWorkspace(request, chunk, loads, &stages[stage]);
    }
  }
  FindPeak(unit, program, schedule, &stages);
  return stages;
}

}  // namespace anabranch::sim
