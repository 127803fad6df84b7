// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_PROGRAM_BUILDER_H_
#define ANABRANCH_SIM_PLANNER_PROGRAM_BUILDER_H_

#include <utility>
#include <vector>

#include "sim/planner/program/program.h"

// Builds the program of one step. Internal to this folder: a task and its collectives (tasks.cc), a
// layer (layer.cc), a chunk's pass (passes.cc), a stage's phases (program.cc), and what stands
// before the first and after the last pass (step_ends.cc).
namespace anabranch::sim {

using Ids = std::vector<int32_t>;  // tasks; an entry below zero stands for none

class ProgramBuilder {
 public:
  ProgramBuilder(const Request& request, const Costs& costs,
                 const std::vector<ExpertCosts>& experts, const std::vector<Chunk>& chunks)
      : request_(request),
        layout_(request.layout),
        costs_(costs),
        experts_(experts),
        chunks_(chunks) {
    const Hardware& hardware = request.hardware;
    const double sms = static_cast<double>(hardware.sms);
    collective_share_ = static_cast<double>(hardware.collective_sms) / sms;
    fsdp_ = layout_.sharding == static_cast<int64_t>(Sharding::kFsdp);
    ports_ = MakePorts(hardware, layout_.ranks);
    dual_ = layout_.pipeline == static_cast<int64_t>(Pipeline::kDualPipe);
  }

  Program Build(const std::vector<std::vector<Phase>>& phases);

 private:
  struct Passed {  // a unit's pass: where it begins and what must end before the next stage goes on
    int32_t entry = -1;
    int32_t exit = -1;
    int32_t sent = -1;
  };
  struct Where {  // the pass that is being built
    int32_t stage;
    int32_t order;
    int32_t microbatch;
    int64_t unit;
  };

  int32_t Add(const Where& where, Stream stream, Kind kind, int64_t layer, const Ids& before);
  int32_t Compute(const Where& where, Kind kind, int64_t layer, const Work& work,
                  const Ids& before);
  int32_t Collective(const Where& where, Stream stream, Kind kind, int64_t layer,
                     const Transfer& transfer, const Ids& before);
  int32_t Copy(const Where& where, Stream stream, int64_t layer, double bytes, const Ids& before);

  Ids Tensor(const Where& where, int64_t layer, const Ids& before);
  Ids Gather(const Where& where, int64_t layer, const Ids& before);
  void Scatter(const Where& where, int64_t layer, int32_t after);
  Ids ForwardExperts(const Where& where, int64_t layer, const Ids& before, bool again);
  Ids ForwardLayer(const Where& where, int64_t layer, const Ids& before, bool again);
  Ids BackwardExperts(const Where& where, int64_t layer, const Ids& before);
  Ids BackwardLayer(const Where& where, int64_t layer, const Ids& before);
  Ids Recompute(const Where& where, int64_t layer, const Ids& before);
  Passed Forward(const Unit& unit, const Where& where, const Ids& before);
  Passed Backward(const Unit& unit, const Where& where, const Ids& before);
  void AddPhases(int32_t stage, const std::vector<Phase>& phases);
  void LinkStages();
  void StartOfStep();
  void EndOfStep();
  Transfer Reduce(double plain_bytes, double expert_bytes) const;
  bool HasExperts(int64_t layer) const { return layer >= request_.model.dense_layers; }
  int64_t UnitIndex(const Unit& unit) const {
    return (unit.direction * static_cast<int64_t>(chunks_.size()) + unit.position) * microbatches_ +
           unit.microbatch;
  }

  const Request& request_;
  const Layout& layout_;
  const Costs& costs_;
  const std::vector<ExpertCosts>& experts_;
  const std::vector<Chunk>& chunks_;
  Ports ports_;
  double collective_share_ = 0;
  bool fsdp_ = false;
  bool dual_ = false;
  int64_t microbatches_ = 0;  // of one direction
  Program program_;
  std::vector<Passed> forward_, backward_;
  std::vector<Ids> offloaded_;  // of each unit: its copies to the host, by layer
  std::vector<Ids> loose_;      // of each stage: ends nothing waits for but the step
  std::vector<Ids> wgrads_;     // of the phase being built
  Ids entry_of_layer_;          // predecessors of the layer built last, for prefetch
};

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_PROGRAM_BUILDER_H_
