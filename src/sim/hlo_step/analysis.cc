// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo_step/analysis.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "sim/hlo/classify.h"
#include "sim/hlo_step/hlo_graph.h"
#include "sim/xla_scheduler/scheduler.h"

namespace anabranch::sim::hlo {
namespace {

constexpr std::array<const char*, kStreams> kStreamNames = {"compute", "ep",  "async", "dp",
                                                            "pp",      "h2d", "d2h"};

// 17 digits read back to the same bits.
std::string Number(double value, int digits = 17) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return text.data();
}

std::string Quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

Status Price(const Hardware& hardware, int64_t num_devices, Analysis* analysis) {
  const HloModule& module = analysis->module;
  analysis->costs.assign(module.computations.size(), {});
  for (const int c : ScheduledComputations(module)) {
    const Computation& computation = module.computations[c];
    analysis->costs[c].resize(computation.instructions.size());
    for (size_t n = 0; n < computation.instructions.size(); ++n) {
      ANABRANCH_RETURN_IF_ERROR(CostOf(module, computation, static_cast<int>(n), hardware,
                                       num_devices, &analysis->costs[c][n]));
    }
  }
  return Status::Ok();
}

Status Reschedule(const Hardware& hardware, const AnalysisOptions& options, Analysis* analysis) {
  HloModule& module = analysis->module;
  std::vector<ResourceCounts> inner(module.computations.size());
  GraphOptions graph_options;
  graph_options.num_devices = options.num_devices;
  if (options.scale_up_resource) graph_options.scale_up_domain = hardware.scale_up_domain;
  for (const int c : ScheduledComputations(module)) {
    Computation& computation = module.computations[c];
    const std::vector<InstructionTimes> times =
        options.default_times ? DefaultTimes(module, computation)
                              : ProfileTimes(module, computation, analysis->costs[c]);
    HloGraph graph;
    ANABRANCH_RETURN_IF_ERROR(
        BuildHloGraph(module, computation, times, graph_options, inner, &graph));
    std::vector<int> order;
    ANABRANCH_RETURN_IF_ERROR(LatencyHidingSchedule(graph.graph, options.scheduler, &order));
    inner[c] = PeakResources(graph.graph, order);
    Reorder(order, &computation);
    std::vector<InstructionCost> costs;
    costs.reserve(order.size());
    for (const int n : order) costs.push_back(analysis->costs[c][n]);
    analysis->costs[c] = std::move(costs);
  }
  return Status::Ok();
}

std::string AsynchronousJson(const Analysis& analysis) {
  std::string json = "[";
  for (const InstructionTime& entry : analysis.summary.asynchronous) {
    const TaskOrigin origin = entry.origin;
    const Computation& computation = analysis.module.computations[origin.computation];
    const Instruction& i = computation.instructions[origin.instruction];
    const InstructionCost& cost = analysis.costs[origin.computation][origin.instruction];
    json += json.size() > 1 ? ", {" : "{";
    json +=
        "\"name\": " + Quoted(i.name) + ", \"opcode\": " + Quoted(InnerOpcode(analysis.module, i)) +
        ", \"stream\": " + Quoted(kStreamNames[static_cast<int>(entry.stream)]) +
        ", \"seconds\": " + Number(entry.time.busy) +
        ", \"exposed\": " + Number(entry.time.exposed) +
        ", \"count\": " + std::to_string(entry.time.count) + ", \"bytes\": " + Number(cost.bytes) +
        ", \"inside_domain\": " + (cost.transfer.scale_out > 0 ? "false" : "true") + "}";
  }
  return json + "]";
}

std::string StreamsJson(const TimelineSummary& summary) {
  std::string json = "{";
  for (int s = 0; s < kStreams; ++s) {
    const StreamTime& time = summary.streams[s];
    if (s > 0) json += ", ";
    json += Quoted(kStreamNames[s]) + ": {\"busy\": " + Number(time.busy) +
            ", \"exposed\": " + Number(time.exposed) +
            ", \"count\": " + std::to_string(time.count) + "}";
  }
  return json + "}";
}

const Instruction& OriginOf(const Analysis& analysis, size_t task) {
  const TaskOrigin origin = analysis.timeline.origins[task];
  return analysis.module.computations[origin.computation].instructions[origin.instruction];
}

std::string EventsJson(const Analysis& analysis) {
  std::string json = "[";
  const Timeline& timeline = analysis.timeline;
  for (size_t task = 0; task < timeline.tasks.size(); ++task) {
    if (task > 0) json += ", ";
    json += "[" + Quoted(OriginOf(analysis, task).name) + ", " +
            Quoted(kStreamNames[static_cast<int>(timeline.tasks[task].stream)]) + ", " +
            Number(timeline.schedule.start[task]) + ", " +
            Number(timeline.schedule.end[task] - timeline.schedule.start[task]) + "]";
  }
  return json + "]";
}

std::string OrderJson(const HloModule& module) {
  std::string json = "[";
  for (const Instruction& i : module.entry_computation().instructions) {
    if (json.size() > 1) json += ", ";
    json += Quoted(i.name);
  }
  return json + "]";
}

}  // namespace

Status AnalyzeHlo(std::string_view text, const Hardware& hardware, const AnalysisOptions& options,
                  Analysis* analysis) {
  *analysis = Analysis();
  if (options.num_devices < 1) {
    return InvalidArgument("hlo: num_devices=", options.num_devices, "; must be >= 1");
  }
  ANABRANCH_RETURN_IF_ERROR(ParseHlo(text, &analysis->module));
  ANABRANCH_RETURN_IF_ERROR(Price(hardware, options.num_devices, analysis));
  if (options.reschedule) {
    ANABRANCH_RETURN_IF_ERROR(Reschedule(hardware, options, analysis));
  }
  ANABRANCH_RETURN_IF_ERROR(
      RunTimeline(analysis->module, analysis->costs, options.timeline, &analysis->timeline));
  analysis->summary = Summarize(analysis->timeline);
  return Status::Ok();
}

std::string ToJson(const Analysis& analysis, bool trace) {
  double flops = 0;
  std::set<std::string> guessed;
  for (size_t task = 0; task < analysis.timeline.tasks.size(); ++task) {
    const TaskOrigin origin = analysis.timeline.origins[task];
    const InstructionCost& cost = analysis.costs[origin.computation][origin.instruction];
    flops += cost.flops;
    if (!cost.guessed) continue;
    guessed.emplace(OriginOf(analysis, task).attribute("custom_call_target"));
  }
  std::string names;
  for (const std::string& name : guessed) {
    // The attribute has its quotes already.
    names += (names.empty() ? "" : ", ") + (name.empty() ? std::string("\"\"") : name);
  }
  std::string json =
      "{\"module\": " + Quoted(analysis.module.name) +
      ", \"scheduled\": " + (analysis.module.is_scheduled ? "true" : "false") +
      ", \"seconds\": " + Number(analysis.summary.seconds) + ", \"flops\": " + Number(flops) +
      ", \"streams\": " + StreamsJson(analysis.summary) +
      ", \"asynchronous\": " + AsynchronousJson(analysis) + ", \"guessed_calls\": [" + names + "]" +
      ", \"unknown_loops\": " + std::to_string(analysis.timeline.unknown_loops) +
      ", \"order\": " + OrderJson(analysis.module);
  if (trace) json += ", \"events\": " + EventsJson(analysis);
  return json + "}";
}

std::string ToProfile(const Analysis& analysis) {
  constexpr double kMicroseconds = 1e6;
  std::string profile;
  for (size_t c = 0; c < analysis.costs.size(); ++c) {
    const Computation& computation = analysis.module.computations[c];
    for (size_t n = 0; n < analysis.costs[c].size(); ++n) {
      const InstructionCost& cost = analysis.costs[c][n];
      if (cost.kind == InstructionCost::Kind::kNothing) continue;
      profile += "costs { name: " + Quoted(computation.instructions[n].name) +
                 " cost_us: " + Number(cost.Seconds() * kMicroseconds, 9) + " }\n";
    }
  }
  return profile;
}

}  // namespace anabranch::sim::hlo
