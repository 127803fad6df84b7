// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_STEP_TIMELINE_H_
#define ANABRANCH_SIM_HLO_STEP_TIMELINE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "sim/engine/engine.h"
#include "sim/hlo/module.h"
#include "sim/hlo_step/hlo_cost.h"

namespace anabranch::sim::hlo {

struct TimelineOptions {
  // Without it, collectives run one after the other on one stream, as XLA runs them by default;
  // with it, all-to-alls, other collectives and sends have a stream each.
  bool multi_stream = false;
  // false: a start is waited for at once.
  bool overlap = true;
  // Shares of the SMs that collectives hold while they run, and of the memory's bandwidth.
  double collective_sm_share = 0;
  double collective_hbm_share = 0;
};

// Which instruction a task of the engine is.
struct TaskOrigin {
  int32_t computation;
  int32_t instruction;
};

struct Timeline {
  std::vector<Task> tasks;
  std::vector<TaskOrigin> origins;  // one for each task
  Schedule schedule;
  int64_t unknown_loops = 0;  // loops whose number of iterations is not known; they run once
};

// Runs the module's schedule: loops are unrolled, a start begins after what was issued before it,
// and what follows a done waits for it. costs: of each computation's instructions.
// OutOfRange: more than two million tasks.
Status RunTimeline(const HloModule& module, const std::vector<std::vector<InstructionCost>>& costs,
                   const TimelineOptions& options, Timeline* timeline);

// Seconds of one kind of work: in all, and while the compute stream waited for it.
struct StreamTime {
  double busy = 0;
  double exposed = 0;
  int64_t count = 0;
};

// One instruction, summed over its runs.
struct InstructionTime {
  TaskOrigin origin{};
  Stream stream = Stream::kCompute;
  StreamTime time;
};

struct TimelineSummary {
  double seconds = 0;
  std::vector<StreamTime> streams;            // by Stream
  std::vector<InstructionTime> asynchronous;  // collectives and copies, most exposed first
};
TimelineSummary Summarize(const Timeline& timeline);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_STEP_TIMELINE_H_
