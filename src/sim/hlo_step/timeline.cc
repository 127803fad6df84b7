// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo_step/timeline.h"

#include <algorithm>
#include <map>

#include "sim/hlo/classify.h"

namespace anabranch::sim::hlo {
namespace {

constexpr size_t kMostTasks = 2'000'000;

class Unroller {
 public:
  Unroller(const HloModule& module, const std::vector<std::vector<InstructionCost>>& costs,
           const TimelineOptions& options, Timeline* timeline)
      : module_(module), costs_(costs), options_(options), timeline_(timeline) {}

  Status Run(int number) {
    const Computation& computation = module_.computations[number];
    // Tasks of the starts that are open in this computation.
    std::vector<int32_t> open(computation.instructions.size(), -1);
    for (size_t n = 0; n < computation.instructions.size(); ++n) {
      const Instruction& i = computation.instructions[n];
      if (RunsComputations(i)) {
        ANABRANCH_RETURN_IF_ERROR(RunCalled(i));
        continue;
      }
      const InstructionCost& cost = costs_[number][n];
      if (cost.kind != InstructionCost::Kind::kNothing) {
        if (timeline_->tasks.size() >= kMostTasks) {
          return OutOfRange("hlo: the loops unroll to more than ", kMostTasks, " operations");
        }
        const int32_t task = AddTask(cost, {number, static_cast<int32_t>(n)});
        if (cost.stream == Stream::kCompute) continue;
        const bool start = RoleOf(module_, computation, i) == NodeRole::kStart;
        if (start && options_.overlap) {
          open[n] = task;
        } else {
          frontier_.push_back(task);
        }
      } else if (i.opcode.ends_with("-done")) {
        const int start = StartOf(computation, i);
        if (start >= 0 && open[start] >= 0) frontier_.push_back(open[start]);
      }
    }
    return Status::Ok();
  }

  const std::vector<std::pair<int32_t, int32_t>>& edges() const { return edges_; }

 private:
  Status RunCalled(const Instruction& i) {
    if (i.opcode == "while") {
      const int64_t trips = TripCount(i);
      if (i.attribute("backend_config").find("known_trip_count") == std::string_view::npos) {
        ++timeline_->unknown_loops;
      }
      for (int64_t trip = 0; trip < trips; ++trip) {
        for (const int called : i.called) ANABRANCH_RETURN_IF_ERROR(Run(called));
      }
      return Status::Ok();
    }
    if (i.called.empty()) return Status::Ok();
    if (i.opcode == "call") return Run(i.called.front());
    // Of a conditional the longest branch.
    const int branch = *std::max_element(i.called.begin(), i.called.end(), [&](int a, int b) {
      return module_.computations[a].instructions.size() <
             module_.computations[b].instructions.size();
    });
    return Run(branch);
  }

  int32_t AddTask(const InstructionCost& cost, TaskOrigin origin) {
    const auto number = static_cast<int32_t>(timeline_->tasks.size());
    Task task;
    task.stream = cost.stream;
    task.order = number;
    if (cost.kind == InstructionCost::Kind::kCollective) {
      task.transfer = cost.transfer;
      task.sm_share = options_.collective_sm_share;
      task.hbm_share = options_.collective_hbm_share;
    } else if (cost.kind == InstructionCost::Kind::kKernel) {
      task.sm_seconds = cost.sm_seconds;
      task.hbm_seconds = cost.hbm_seconds;
      task.fixed_seconds = cost.fixed_seconds;
    } else {
      task.fixed_seconds = cost.Seconds();
    }
    timeline_->tasks.push_back(task);
    timeline_->origins.push_back(origin);
    for (const int32_t before : frontier_) edges_.emplace_back(before, number);
    if (cost.kind == InstructionCost::Kind::kCollective && !options_.multi_stream) {
      if (last_collective_ >= 0) edges_.emplace_back(last_collective_, number);
      last_collective_ = number;
    }
    if (cost.stream == Stream::kCompute) frontier_.assign(1, number);
    return number;
  }

  const HloModule& module_;
  const std::vector<std::vector<InstructionCost>>& costs_;
  const TimelineOptions& options_;
  Timeline* timeline_;
  std::vector<std::pair<int32_t, int32_t>> edges_;
  // What the next operation on the compute stream waits for: the one before and the dones since.
  std::vector<int32_t> frontier_;
  int32_t last_collective_ = -1;
};

}  // namespace

Status RunTimeline(const HloModule& module, const std::vector<std::vector<InstructionCost>>& costs,
                   const TimelineOptions& options, Timeline* timeline) {
  *timeline = Timeline();
  Unroller unroller(module, costs, options, timeline);
  ANABRANCH_RETURN_IF_ERROR(unroller.Run(module.entry));
  return sim::RunTasks(timeline->tasks, unroller.edges(), {1.0}, &timeline->schedule);
}

TimelineSummary Summarize(const Timeline& timeline) {
  TimelineSummary summary;
  summary.seconds = timeline.schedule.seconds;
  summary.streams.resize(kStreams);
  std::map<std::pair<int32_t, int32_t>, InstructionTime> asynchronous;
  const auto time_of = [&](int32_t task) -> StreamTime& {
    const TaskOrigin origin = timeline.origins[task];
    InstructionTime& entry = asynchronous[{origin.computation, origin.instruction}];
    entry.origin = origin;
    entry.stream = timeline.tasks[task].stream;
    return entry.time;
  };
  // The compute stream waits from `begin` to `end` because of `task`, or of what `task` waited for
  // while it had not begun.
  const auto expose = [&](int32_t task, double begin, double end) {
    while (task >= 0 && begin < end && timeline.tasks[task].stream != Stream::kCompute) {
      const double from = std::max(begin, timeline.schedule.start[task]);
      summary.streams[static_cast<int>(timeline.tasks[task].stream)].exposed += end - from;
      time_of(task).exposed += end - from;
      end = from;
      task = timeline.schedule.cause[task];
    }
  };
  double compute_end = 0;
  int32_t last = -1;
  for (size_t n = 0; n < timeline.tasks.size(); ++n) {
    const auto task = static_cast<int32_t>(n);
    const double start = timeline.schedule.start[n];
    const double end = timeline.schedule.end[n];
    const Stream stream = timeline.tasks[n].stream;
    StreamTime& total = summary.streams[static_cast<int>(stream)];
    total.busy += end - start;
    ++total.count;
    if (last < 0 || end > timeline.schedule.end[last]) last = task;
    if (stream == Stream::kCompute) {
      // Tasks of the compute stream run in the order of their numbers.
      expose(timeline.schedule.cause[n], compute_end, start);
      compute_end = end;
    } else {
      StreamTime& own = time_of(task);
      own.busy += end - start;
      ++own.count;
    }
  }
  expose(last, compute_end, summary.seconds);
  for (const auto& [key, entry] : asynchronous) summary.asynchronous.push_back(entry);
  std::stable_sort(summary.asynchronous.begin(), summary.asynchronous.end(),
                   [](const InstructionTime& a, const InstructionTime& b) {
                     return a.time.exposed > b.time.exposed;
                   });
  return summary;
}

}  // namespace anabranch::sim::hlo
