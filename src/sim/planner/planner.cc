// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/planner.h"

#include <algorithm>
#include <cmath>

namespace anabranch::sim {
namespace {

// By what a task is for: on a single stream, expert and data parallelism share one queue.
double* BucketOf(StageTime* time, Stream stream, Kind kind) {
  if (kind == Kind::kGather || kind == Kind::kScatter) return &time->dp;
  if (kind == Kind::kTensor) return &time->tp;
  switch (stream) {
    case Stream::kEp:
      return &time->ep;
    case Stream::kTp:
      return &time->tp;
    case Stream::kDp:
      return &time->dp;
    case Stream::kPp:
      return &time->pp;
    case Stream::kH2d:
    case Stream::kD2h:
      return &time->offload;
    case Stream::kCompute:
      return &time->bubble;
  }
  return &time->bubble;
}

// Splits every gap of a stage's compute stream by what ended it. Of a gap that a collective of the
// same stage ended, the part before that collective began belongs to what held that up.
void BookGap(const Program& program, const Schedule& schedule, int32_t task, double from,
             StageTime* time) {
  const int32_t stage = program.tasks[task].rank_class;
  double until = schedule.start[task];
  int32_t cause = schedule.cause[task];
  while (cause >= 0 && until > from) {
    const Task& held = program.tasks[cause];
    if (held.stream == Stream::kCompute) break;
    const double began = std::max(schedule.start[cause], from);
    if (began < until) {
      *BucketOf(time, held.stream, program.labels[cause].kind) += until - began;
    }
    until = std::min(until, began);
    if (held.rank_class != stage) break;  // a send: before it, the other stage computed
    cause = schedule.cause[cause];
  }
  if (until > from) time->bubble += until - from;
}

std::vector<StageTime> BookTime(const Program& program, const Schedule& schedule, size_t stages) {
  std::vector<StageTime> times(stages);
  std::vector<std::vector<int32_t>> order(stages);
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    if (task.stream == Stream::kCompute) order[task.rank_class].push_back(static_cast<int32_t>(i));
  }
  for (size_t stage = 0; stage < stages; ++stage) {
    std::sort(order[stage].begin(), order[stage].end(), [&](int32_t a, int32_t b) {
      return schedule.start[a] != schedule.start[b] ? schedule.start[a] < schedule.start[b] : a < b;
    });
    StageTime& time = times[stage];
    double now = 0;
    for (const int32_t task : order[stage]) {
      if (schedule.start[task] > now) BookGap(program, schedule, task, now, &time);
      const double seconds = schedule.end[task] - schedule.start[task];
      time.compute += seconds;
      if (program.labels[task].kind == Kind::kRecompute) time.recompute += seconds;
      if (program.labels[task].kind == Kind::kOptimizer) time.optimizer += seconds;
      now = std::max(now, schedule.end[task]);
    }
    time.bubble += schedule.seconds - now;
  }
  return times;
}

// The rank of each stage that jitter slows most. Ranks that meet once a step average their noise
// over it; under FSDP all meet at every layer. If all noise lasted a step, both would lose the
// same, and if it were new with each of the 2 * layers passes, sqrt(2 * layers) times as much: the
// geometric mean of the two is taken.
std::vector<double> Slowdowns(const Request& request) {
  const Layout& layout = request.layout;
  const Imbalance& imbalance = request.imbalance;
  std::vector<double> slowdown(static_cast<size_t>(layout.pp), 1);
  if (imbalance.jitter <= 0) return slowdown;
  double deviation = imbalance.jitter;
  if (layout.sharding == static_cast<int64_t>(Sharding::kFsdp)) {
    deviation *=
        std::pow(2.0 * static_cast<double>(std::max<int64_t>(request.model.layers, 1)), 0.25);
  }
  const double stages = static_cast<double>(layout.pp);
  const double peers = static_cast<double>(layout.ranks) / stages;
  const double known = static_cast<double>(imbalance.jitter_reference) / stages;
  const double held = known > 0 ? MedianMaximum(known) : 0;
  for (size_t stage = 0; stage < slowdown.size(); ++stage) {
    const double draw = NormalMaximum(imbalance.seed, static_cast<int64_t>(stage) + 1000, peers);
    slowdown[stage] = std::max(1 + deviation * (draw - held), 0.01);
  }
  return slowdown;
}

struct Plan {
  Costs costs;
  std::vector<ExpertCosts> experts;
  std::vector<LayerLoad> loads;
  std::vector<Chunk> chunks;
};

Plan MakePlan(const Request& request) {
  const Model& model = request.model;
  Plan plan;
  plan.costs = MakeCosts(request);
  plan.loads = MakeLoads(request, model.layers - model.dense_layers);
  plan.experts.resize(static_cast<size_t>(model.layers + 1));
  for (int64_t layer = model.dense_layers; layer < model.layers; ++layer) {
    const LayerLoad& load = plan.loads[static_cast<size_t>(layer - model.dense_layers)];
    plan.experts[static_cast<size_t>(layer)] = MakeExpertCosts(request, load.rank, load.domain);
  }
  if (model.mtp_layers > 0) {
    const LayerLoad load = plan.loads.empty() ? LayerLoad{} : plan.loads.back();
    plan.experts.back() = MakeExpertCosts(request, load.rank, load.domain);
  }
  plan.chunks = MakeChunks(request, plan.costs, plan.experts);
  return plan;
}

Status RunOnce(const Request& request, const Plan& plan, int64_t microbatches, Answer* answer) {
  answer->program = MakeProgram(request, plan.costs, plan.experts, plan.chunks,
                                MakePhases(request.layout, microbatches));
  ANABRANCH_RETURN_IF_ERROR(RunTasks(answer->program.tasks, answer->program.edges,
                                     Slowdowns(request), &answer->schedule));
  answer->stages =
      BookTime(answer->program, answer->schedule, static_cast<size_t>(request.layout.pp));
  answer->step_seconds = answer->schedule.seconds;
  answer->simulated_microbatches = microbatches;
  return Status::Ok();
}

// a + (b - a) * factor for every part.
void Extend(const StageTime& a, double factor, StageTime* b) {
  const auto extend = [factor](double from, double* to) { *to = from + (*to - from) * factor; };
  extend(a.compute, &b->compute);
  extend(a.ep, &b->ep);
  extend(a.tp, &b->tp);
  extend(a.dp, &b->dp);
  extend(a.pp, &b->pp);
  extend(a.offload, &b->offload);
  extend(a.bubble, &b->bubble);
  extend(a.recompute, &b->recompute);
  extend(a.optimizer, &b->optimizer);
}

// The steady state repeats with pp microbatches: two short runs that differ by one period give the
// length of any longer one. The shorter has two periods for the pipeline to fill and settle;
// DualPipe's two directions settle more slowly: at pp 4 to 16 every period after the seventh took
// the same time, at pp 16 none before it.
Status RunExtended(const Request& request, const Plan& plan, int64_t limit, Answer* answer) {
  const int64_t wanted = request.layout.microbatches();
  const bool dual = request.layout.pipeline == static_cast<int64_t>(Pipeline::kDualPipe);
  const int64_t cycle = request.layout.pp;
  const int64_t period = cycle * std::max<int64_t>(8 / cycle, 1);
  const int64_t periods = std::max<int64_t>(limit / period, dual ? 9 : 3);
  const int64_t many = wanted % period + periods * period;
  const int64_t few = many - period;
  if (few < period || many >= wanted) return RunOnce(request, plan, wanted, answer);
  Answer shorter;
  ANABRANCH_RETURN_IF_ERROR(RunOnce(request, plan, few, &shorter));
  ANABRANCH_RETURN_IF_ERROR(RunOnce(request, plan, many, answer));
  const double factor = static_cast<double>(wanted - few) / static_cast<double>(many - few);
  answer->step_seconds =
      shorter.step_seconds + (answer->step_seconds - shorter.step_seconds) * factor;
  for (size_t i = 0; i < answer->stages.size(); ++i) {
    Extend(shorter.stages[i], factor, &answer->stages[i]);
  }
  return Status::Ok();
}

void BookImbalance(const Request& request, const Plan& plan, Answer* answer) {
  const ExpertCosts mean = MakeExpertCosts(request, 1, 1);
  double extra = 0;
  double load = 0;
  for (const LayerLoad& layer : plan.loads) load += layer.rank;
  if (!plan.loads.empty()) answer->rank_load = load / static_cast<double>(plan.loads.size());
  for (const Chunk& chunk : plan.chunks) {
    for (int64_t layer = std::max(chunk.first, request.model.dense_layers); layer < chunk.last;
         ++layer) {
      const ExpertCosts& busiest = plan.experts[static_cast<size_t>(layer)];
      for (const Pass pass : {kForward, kDgrad, kWgrad}) {
        extra += busiest.experts[pass].Seconds() - mean.experts[pass].Seconds();
      }
    }
  }
  // A stage does its own layers once per microbatch; this is the mean over the stages.
  answer->imbalance_seconds = extra * static_cast<double>(request.layout.microbatches()) /
                              static_cast<double>(request.layout.pp);
}

}  // namespace

Status Simulate(const Request& request, Answer* answer) {
  ANABRANCH_RETURN_IF_ERROR(Validate(request));
  const Plan plan = MakePlan(request);
  const int64_t wanted = request.layout.microbatches();
  const auto limit = static_cast<int64_t>(request.microbatch_limit);
  if (limit > 0 && limit < wanted) {
    ANABRANCH_RETURN_IF_ERROR(RunExtended(request, plan, limit, answer));
  } else {
    ANABRANCH_RETURN_IF_ERROR(RunOnce(request, plan, wanted, answer));
  }
  BookImbalance(request, plan, answer);
  answer->chunks = plan.chunks;
  answer->memory = MakeMemory(request, plan.chunks, plan.loads, answer->program, answer->schedule);
  return Status::Ok();
}

}  // namespace anabranch::sim
