// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/program/chunks.h"

#include <algorithm>

namespace anabranch::sim {

namespace {

double Flops(const Passes& passes) {
  double flops = 0;
  for (const Work& work : passes) flops += work.flops;
  return flops;
}

// FLOPs of one layer, forward and backward, for the cut into chunks.
double LayerFlops(const Costs& costs, const ExpertCosts* experts) {
  if (experts == nullptr) return Flops(costs.attention) + Flops(costs.dense);
  return Flops(costs.attention) + Flops(costs.shared) + Flops(experts->experts);
}

}  // namespace

std::vector<Chunk> MakeChunks(const Request& request, const Costs& costs,
                              const std::vector<ExpertCosts>& experts) {
  const Model& model = request.model;
  const auto count = static_cast<size_t>(request.layout.pp * request.layout.vp);
  std::vector<double> flops;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    flops.push_back(LayerFlops(costs, layer < model.dense_layers ? nullptr : &experts[layer]));
  }
  double tail = static_cast<double>(1 + model.mtp_layers) * Flops(costs.head);
  if (model.mtp_layers > 0) tail += LayerFlops(costs, &experts[model.layers]);
  // Greedy under a limit of FLOPs and of layers (no chunk has more than an even split's longest,
  // as frameworks demand); leaves a layer for every later chunk while there are enough.
  const auto chunks_wanted = static_cast<int64_t>(count);
  const int64_t longest = (model.layers + chunks_wanted - 1) / chunks_wanted;
  const auto cut = [&](double limit, std::vector<Chunk>* chunks) {
    chunks->assign(count, Chunk{});
    int64_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      Chunk& chunk = (*chunks)[i];
      chunk.first = next;
      double sum = i + 1 == count ? tail : 0;
      const int64_t later = static_cast<int64_t>(count - i - 1);
      while (next < model.layers - later && next - chunk.first < longest &&
             (sum + flops[next] <= limit || (chunk.first == next && i + 1 < count))) {
        sum += flops[next++];
      }
      chunk.last = next;
    }
    return next == model.layers;
  };
  double low = 0;
  double high = tail;
  for (const double each : flops) high += each;
  std::vector<Chunk> chunks;
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (cut(middle, &chunks) ? high : low) = middle;
  }
  cut(high * (1 + 1e-9), &chunks);
  chunks.front().embedding = true;
  chunks.back().head = true;
  return chunks;
}

}  // namespace anabranch::sim
