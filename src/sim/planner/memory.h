// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_MEMORY_H_
#define ANABRANCH_SIM_PLANNER_MEMORY_H_

#include <vector>

#include "sim/planner/imbalance.h"
#include "sim/planner/program/program.h"

// Bytes of device memory, for the busiest rank of a stage. Activations are what a training step
// keeps from forward to backward by tensor; nothing of them is padded unless dispatch_factor says
// so.
namespace anabranch::sim {

// Saved tensors of one layer (or of a whole chunk), for one microbatch.
struct Activations {
  double residual = 0;  // inputs of the two halves of a block
  double norm = 0;
  double latent = 0;  // queries, keys, values, and the latents they come from
  double attention = 0;
  double dense_ffn = 0;
  double shared_expert = 0;
  double router = 0;
  double expert_input = 0;
  double expert_hidden = 0;
  double expert_activation = 0;

  double Sum() const;
  Activations& operator+=(const Activations& other);
};

// `mask` (Saved) names what is not kept. `rows` multiplies the balanced rows of the experts.
Activations DenseLayer(const Request& request, int64_t mask);
Activations ExpertLayer(const Request& request, int64_t mask, double rows);

// Bytes of one layer that travel to the host and back.
double OffloadedBytes(const Request& request, bool expert_layer, double rows);

// What a stage holds beside activations.
struct StageMemory {
  double parameters = 0;  // this rank's, experts included
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  double gathered = 0;   // parameters of layers gathered for use (FSDP)
  double workspace = 0;  // logits, gradients of one layer's rows, dummy weight gradients
  double dispatch = 0;   // receive and combine buffers
  double communication = 0;
  Activations activations;  // at the peak
  double peak_seconds = 0;  // when
  double Sum() const;       // allocated at the peak
};

// Parameters of a chunk that this rank holds before data-parallel sharding.
struct ChunkParameters {
  double plain = 0;
  double experts = 0;
};
ChunkParameters CountChunk(const Request& request, const Chunk& chunk);

// Ranks over which the optimizer's state of plain and of expert parameters is spread.
double PlainShards(const Layout& layout);
double ExpertShards(const Layout& layout);

// Memory of every stage; `schedule` is the run of `program`. `loads` as of MakeLoads.
std::vector<StageMemory> MakeMemory(const Request& request, const std::vector<Chunk>& chunks,
                                    const std::vector<LayerLoad>& loads, const Program& program,
                                    const Schedule& schedule);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_MEMORY_H_
