// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/optimizer.h"

#include <algorithm>
#include <cmath>

#include "ops/adamw/adamw_cost.h"
#include "ops/muon/muon_cost.h"

namespace anabranch::sim {
namespace {

constexpr double kModelBytes = 2;   // the bf16 copy
constexpr int64_t kIterations = 5;  // of muon.h, and of the frameworks whose rows are known

double Flops(int64_t m, int64_t n) { return MuonFlops(1, m, n, kIterations); }

double AttentionFlops(const Model& model) {
  const int64_t query = model.heads * model.QueryKeySize();
  const double out = Flops(model.heads * model.ValueSize(), model.hidden);
  if (!model.mla) {
    const int64_t key = model.kv_heads * model.head_size;
    return Flops(model.hidden, query) + 2 * Flops(model.hidden, key) + out;
  }
  const double queries = model.q_rank > 0
                             ? Flops(model.hidden, model.q_rank) + Flops(model.q_rank, query)
                             : Flops(model.hidden, query);
  return queries + out + Flops(model.hidden, model.kv_rank + model.rope_size) +
         Flops(model.kv_rank, model.heads * (model.nope_size + model.value_size));
}

}  // namespace

MatrixFlops MuonMatrixFlops(const Request& request, const Chunk& chunk) {
  const Model& model = request.model;
  const Layout& layout = request.layout;
  if (layout.optimizer != static_cast<int64_t>(Optimizer::kMuon)) return MatrixFlops{};
  const int64_t dense =
      std::max<int64_t>(std::min(chunk.last, model.dense_layers) - chunk.first, 0);
  int64_t experts = chunk.last - chunk.first - dense;
  MatrixFlops sum;
  if (chunk.head) {
    experts += model.mtp_layers;
    sum.plain += static_cast<double>(model.mtp_layers) * Flops(2 * model.hidden, model.hidden);
  }
  const double shared = Flops(model.hidden, model.shared_experts * model.expert_width);
  sum.plain += static_cast<double>(dense + experts) * AttentionFlops(model) +
               static_cast<double>(dense) * 3 * Flops(model.hidden, model.dense_width) +
               static_cast<double>(experts) * (3 * shared + Flops(model.hidden, model.experts));
  sum.plain /= static_cast<double>(layout.tp);
  sum.experts = static_cast<double>(experts * model.experts) / static_cast<double>(layout.ep) * 3 *
                Flops(model.hidden, model.expert_width);
  return sum;
}

Work OptimizerWork(const Request& request, double parameters, double matrix_flops) {
  const Hardware& hardware = request.hardware;
  const Layout& layout = request.layout;
  const bool muon = layout.optimizer == static_cast<int64_t>(Optimizer::kMuon);
  const int64_t count = std::llround(parameters);
  // Beside the optimizer's own: the model's copy is written, the gradients are read for their norm
  // and cleared.
  const double bytes = (muon ? MuonBytes(count) : AdamwBytes(count)) +
                       (kModelBytes + 2 * layout.gradient_bytes) * parameters;
  Work work;
  work.flops = matrix_flops;
  work.sm_seconds = matrix_flops / (hardware.bf16_flops * hardware.gemm_efficiency);
  if (layout.offload & kOptimizer) {
    const double link = hardware.host_bandwidth * hardware.host_efficiency;
    work.fixed_seconds = bytes / hardware.host_memory_bandwidth +
                         (layout.gradient_bytes + kModelBytes) * parameters / link;
  } else {
    work.fixed_seconds = bytes / (hardware.hbm_bandwidth * hardware.hbm_efficiency);
  }
  return work;
}

}  // namespace anabranch::sim
