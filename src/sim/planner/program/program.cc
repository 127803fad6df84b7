// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/program/program.h"

#include <algorithm>

#include "sim/planner/program/builder.h"
#include "sim/planner/program/launch_order.h"

namespace anabranch::sim {

void ProgramBuilder::AddPhases(int32_t stage, const std::vector<Phase>& phases) {
  Ids before;      // ends of the phase before
  Ids old_wgrads;  // weight gradients may lag one phase, no more: they hold activations
  int32_t order = 0;
  for (const Phase& phase : phases) {
    Ids ready = before;
    ready.insert(ready.end(), old_wgrads.begin(), old_wgrads.end());
    old_wgrads = wgrads_[stage];
    wgrads_[stage].clear();
    before.clear();
    order += 1;
    if (phase.forward.exists()) {
      const int64_t index = UnitIndex(phase.forward);
      const Where where{stage, order, phase.forward.microbatch, index};
      forward_[index] = Forward(phase.forward, where, ready);
      before.push_back(forward_[index].exit);
    }
    if (phase.backward.exists()) {
      const int64_t index = UnitIndex(phase.backward);
      const Where where{stage, order, phase.backward.microbatch, index};
      backward_[index] = Backward(phase.backward, where, ready);
      before.push_back(backward_[index].exit);
      program_.lifetimes.push_back(
          Lifetime{stage, phase.backward.position, forward_[index].entry, backward_[index].exit});
    }
  }
  for (const Ids* ends : {&before, &old_wgrads, &wgrads_[stage]}) {
    loose_[stage].insert(loose_[stage].end(), ends->begin(), ends->end());
  }
}

// A pass waits for the neighbouring chunk's; the last chunk's backward pass for its own forward.
void ProgramBuilder::LinkStages() {
  const auto link = [&](const Passed& from, const Passed& to) {
    if (from.entry < 0 || to.entry < 0) return;
    program_.edges.emplace_back(from.sent >= 0 ? from.sent : from.exit, to.entry);
  };
  const auto chunks = static_cast<int64_t>(chunks_.size());
  for (int64_t run = 0; run < (dual_ ? 2 : 1); ++run) {
    for (int64_t position = 0; position < chunks; ++position) {
      for (int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
        const int64_t at = (run * chunks + position) * microbatches_ + microbatch;
        if (position > 0) link(forward_[at - microbatches_], forward_[at]);
        if (position + 1 < chunks) {
          link(backward_[at + microbatches_], backward_[at]);
        } else if (forward_[at].entry >= 0 && backward_[at].entry >= 0) {
          program_.edges.emplace_back(forward_[at].exit, backward_[at].entry);
        }
      }
    }
  }
}

Program ProgramBuilder::Build(const std::vector<std::vector<Phase>>& phases) {
  for (const auto& stage : phases) {
    for (const Phase& phase : stage) {
      microbatches_ = std::max({microbatches_, int64_t{phase.forward.microbatch} + 1,
                                int64_t{phase.backward.microbatch} + 1});
    }
  }
  const size_t units = 2 * chunks_.size() * static_cast<size_t>(microbatches_);
  forward_.resize(units);
  backward_.resize(units);
  offloaded_.resize(units);
  loose_.resize(static_cast<size_t>(layout_.pp));
  wgrads_.resize(static_cast<size_t>(layout_.pp));
  for (size_t stage = 0; stage < phases.size(); ++stage) {
    AddPhases(static_cast<int32_t>(stage), phases[stage]);
  }
  LinkStages();
  StartOfStep();
  EndOfStep();
  return std::move(program_);
}

Program MakeProgram(const Request& request, const Costs& costs,
                    const std::vector<ExpertCosts>& experts, const std::vector<Chunk>& chunks,
                    const std::vector<std::vector<Phase>>& phases) {
  Program program = ProgramBuilder(request, costs, experts, chunks).Build(phases);
  SetLaunchOrder(&program);
  return program;
}

}  // namespace anabranch::sim
