// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_PROGRAM_PROGRAM_H_
#define ANABRANCH_SIM_PLANNER_PROGRAM_PROGRAM_H_

#include <utility>
#include <vector>

#include "sim/engine/engine.h"
#include "sim/planner/costs.h"
#include "sim/planner/pipeline.h"
#include "sim/planner/program/chunks.h"
#include "sim/planner/request.h"

// One training step as tasks of the engine. A pipeline stage is a rank class: its busiest rank. The
// ranks of an expert-parallel group wait for that one at every combine, so its time is everyone's.
namespace anabranch::sim {

enum class Kind : uint8_t {
  kForward,
  kBackward,
  kWgrad,
  kShared,
  kExperts,
  kExpertsGrad,
  kRecompute,
  kHead,
  kOptimizer,
  kDispatch,
  kCombine,
  kTensor,
  kGather,
  kScatter,
  kSend,
  kOffload,
  kReload,
};  // clang-format off
inline constexpr const char* kKindNames[] = {
    "attention", "attention backward", "weight gradients", "shared expert", "experts",
    "experts backward", "recompute", "head", "optimizer", "dispatch", "combine", "tensor parallel",
    "parameter gather", "gradient scatter", "send", "offload", "reload",
};  // clang-format on

// What a task is for, beside Task itself.
struct Label {
  Kind kind;
  int32_t layer;
  int32_t microbatch;
};

// When an activation lives: from the start of one task to the end of another.
struct Lifetime {
  int32_t stage;
  int32_t position;
  int32_t from;
  int32_t to;
};

struct Program {
  std::vector<Task> tasks;
  std::vector<Label> labels;
  std::vector<std::pair<int32_t, int32_t>> edges;
  std::vector<Lifetime> lifetimes;
};

// `phases` as of MakePhases; experts has one entry per layer (unused for dense ones) and one more
// for the multi-token prediction block when the model has it.
Program MakeProgram(const Request& request, const Costs& costs,
                    const std::vector<ExpertCosts>& experts, const std::vector<Chunk>& chunks,
                    const std::vector<std::vector<Phase>>& phases);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_PROGRAM_PROGRAM_H_
