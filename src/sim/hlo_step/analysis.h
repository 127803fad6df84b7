// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_STEP_ANALYSIS_H_
#define ANABRANCH_SIM_HLO_STEP_ANALYSIS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sim/hlo/module.h"
#include "sim/hlo_step/timeline.h"
#include "sim/planner/request.h"
#include "sim/xla_scheduler/graph.h"

namespace anabranch::sim::hlo {

struct AnalysisOptions {
  int64_t num_devices = 1;
  // false: the text's own order. true: ordered anew by XLA's rules under `scheduler`.
  bool reschedule = false;
  // Order by XLA's built-in guesses instead of the costs of the shapes.
  bool default_times = false;
  // Give collectives inside a scale-up domain their own resource and limit.
  bool scale_up_resource = false;
  SchedulerOptions scheduler;
  TimelineOptions timeline;
};

// A module with its costs, its order and the time line of one step on one device.
struct Analysis {
  HloModule module;  // in the order that was run
  std::vector<std::vector<InstructionCost>> costs;
  Timeline timeline;
  TimelineSummary summary;
};

// Errors: those of ParseHlo, CostOf, LatencyHidingSchedule and RunTimeline.
Status AnalyzeHlo(std::string_view text, const Hardware& hardware, const AnalysisOptions& options,
                  Analysis* analysis);

// {"module", "seconds", "streams": {"compute": {"busy", "exposed", "count"}, ...}, "asynchronous":
// [{"name", "opcode", "stream", "seconds", "exposed", "count", "bytes", "inside_domain"}], "flops",
// "guessed_calls", "unknown_loops", "order": [...] of the entry}; with `trace` also "events":
// [name, stream, start, seconds] of every operation. Seconds, bytes.
std::string ToJson(const Analysis& analysis, bool trace);

// A profile for XLA's profile-guided scheduler, ProfiledInstructionsProto in text form: the cost of
// every kernel, collective and copy in microseconds, under the instruction's name.
std::string ToProfile(const Analysis& analysis);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_STEP_ANALYSIS_H_
