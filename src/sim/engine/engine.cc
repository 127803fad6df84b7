// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/engine/engine.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace anabranch::sim {
namespace {

// Compute always keeps this share of SMs and of HBM bandwidth: kernels of a collective leave blocks
// between their steps.
constexpr double kLeastShare = 0.1;

struct Event {
  double time;
  int32_t task;
  int64_t version;
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : task > other.task;
  }
};

class Engine {
 public:
  Engine(const std::vector<Task>& tasks, const std::vector<double>& slowdown, Schedule* schedule)
      : tasks_(tasks), slowdown_(slowdown), schedule_(schedule) {}

  Status Prepare(const std::vector<std::pair<int32_t, int32_t>>& edges);
  Status Play();

 private:
  using Waiting = std::priority_queue<std::pair<int32_t, int32_t>,
                                      std::vector<std::pair<int32_t, int32_t>>, std::greater<>>;
  struct Class {
    Waiting waiting[kStreams];
    int32_t running[kStreams];
    double updated = 0;
  };

  void Enqueue(int32_t task);
  bool StartWaiting(Class* rank_class, double now);
  void Advance(Class* rank_class, double now);
  void Predict(Class* rank_class, double now);
  double Duration(const Class& rank_class, int32_t task, double speed) const;
  void Finish(int32_t task, double now, std::vector<int32_t>* touched);

  const std::vector<Task>& tasks_;
  const std::vector<double>& slowdown_;
  Schedule* schedule_;
  std::vector<int32_t> first_, next_, missing_;
  std::vector<double> left_, duration_;  // share of a task left, and its length at today's rates
  std::vector<int64_t> version_;
  std::vector<Class> classes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<const Transfer*> transfers_;
  std::vector<double> speeds_;
};

Status Engine::Prepare(const std::vector<std::pair<int32_t, int32_t>>& edges) {
  const auto count = static_cast<int32_t>(tasks_.size());
  first_.assign(tasks_.size() + 1, 0);
  missing_.assign(tasks_.size(), 0);
  for (const auto& [before, after] : edges) {
    if (before < 0 || before >= count || after < 0 || after >= count) {
      return InvalidArgument("sim: edge ", before, " -> ", after, " is not between ", count,
                             " tasks");
    }
    ++first_[before + 1];
    ++missing_[after];
  }
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const auto classes = static_cast<int32_t>(slowdown_.size());
    if (tasks_[i].rank_class < 0 || tasks_[i].rank_class >= classes) {
      return InvalidArgument("sim: task ", i, ": rank_class=", tasks_[i].rank_class, " of ",
                             classes);
    }
    first_[i + 1] += first_[i];
  }
  next_.resize(edges.size());
  std::vector<int32_t> fill(first_.begin(), first_.end() - 1);
  for (const auto& [before, after] : edges) next_[fill[before]++] = after;
  left_.assign(tasks_.size(), 1);
  duration_.assign(tasks_.size(), 0);
  version_.assign(tasks_.size(), 0);
  classes_.resize(slowdown_.size());
  for (Class& rank_class : classes_) std::fill_n(rank_class.running, kStreams, -1);
  schedule_->start.assign(tasks_.size(), 0);
  schedule_->end.assign(tasks_.size(), 0);
  schedule_->cause.assign(tasks_.size(), -1);
  schedule_->seconds = 0;
  schedule_->events = 0;
  return Status::Ok();
}

void Engine::Enqueue(int32_t task) {
  const Task& what = tasks_[task];
  classes_[what.rank_class].waiting[static_cast<int>(what.stream)].emplace(what.order, task);
}

bool Engine::StartWaiting(Class* rank_class, double now) {
  bool any = false;
  for (int stream = 0; stream < kStreams; ++stream) {
    if (rank_class->running[stream] >= 0 || rank_class->waiting[stream].empty()) continue;
    const int32_t task = rank_class->waiting[stream].top().second;
    rank_class->waiting[stream].pop();
    rank_class->running[stream] = task;
    schedule_->start[task] = now;
    any = true;
  }
  return any;
}

// Books the progress since the last change of rates.
void Engine::Advance(Class* rank_class, double now) {
  const double elapsed = now - rank_class->updated;
  rank_class->updated = now;
  if (elapsed <= 0) return;
  for (const int32_t task : rank_class->running) {
    if (task < 0 || duration_[task] <= 0) continue;
    left_[task] = std::max(left_[task] - elapsed / duration_[task], 0.0);
  }
}

double Engine::Duration(const Class& rank_class, int32_t task, double speed) const {
  const Task& what = tasks_[task];
  if (what.stream == Stream::kH2d || what.stream == Stream::kD2h) return what.fixed_seconds;
  if (what.stream != Stream::kCompute) {
    const Transfer& transfer = what.transfer;
    return transfer.latency + std::max(transfer.scale_up, transfer.scale_out) / speed;
  }
  double sms = 0;
  double hbm = 0;
  for (const int32_t other : rank_class.running) {
    if (other < 0 || other == task) continue;
    sms += tasks_[other].sm_share;
    hbm += tasks_[other].hbm_share;
  }
  // What is taken slows the part that needs it. Progress lost is then linear in what a collective
  // takes and for how long: the same bytes at twice the rate cost compute the same.
  const double alone = what.sm_seconds + what.hbm_seconds + what.fixed_seconds;
  if (alone <= 0) return 0;
  const double lost = (sms * what.sm_seconds + hbm * what.hbm_seconds) / alone;
  const double seconds = alone / std::max(1 - lost, kLeastShare);
  return seconds * slowdown_[what.rank_class];
}

// New rates, and with them new ends, for all that runs in the class.
void Engine::Predict(Class* rank_class, double now) {
  transfers_.clear();
  for (const int32_t task : rank_class->running) {
    if (task >= 0) transfers_.push_back(&tasks_[task].transfer);
  }
  FairSpeeds(transfers_, &speeds_);
  size_t at = 0;
  for (const int32_t task : rank_class->running) {
    if (task < 0) continue;
    duration_[task] = Duration(*rank_class, task, speeds_[at++]);
    events_.push(Event{now + left_[task] * duration_[task], task, ++version_[task]});
  }
}

void Engine::Finish(int32_t task, double now, std::vector<int32_t>* touched) {
  Class& own = classes_[tasks_[task].rank_class];
  const int stream = static_cast<int>(tasks_[task].stream);
  own.running[stream] = -1;
  schedule_->end[task] = now;
  touched->push_back(tasks_[task].rank_class);
  if (!own.waiting[stream].empty()) schedule_->cause[own.waiting[stream].top().second] = task;
  for (int32_t i = first_[task]; i < first_[task + 1]; ++i) {
    const int32_t after = next_[i];
    if (--missing_[after] > 0) continue;
    schedule_->cause[after] = task;
    Enqueue(after);
    touched->push_back(tasks_[after].rank_class);
  }
}

Status Engine::Play() {
  size_t done = 0;
  std::vector<int32_t> touched;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (missing_[i] == 0) Enqueue(static_cast<int32_t>(i));
  }
  for (Class& rank_class : classes_) {
    if (StartWaiting(&rank_class, 0)) Predict(&rank_class, 0);
  }
  while (!events_.empty()) {
    const double now = events_.top().time;
    touched.clear();
    while (!events_.empty() && events_.top().time == now) {
      const Event event = events_.top();
      events_.pop();
      if (event.version != version_[event.task]) continue;
      ++version_[event.task];
      ++done;
      Advance(&classes_[tasks_[event.task].rank_class], now);
      Finish(event.task, now, &touched);
    }
    if (touched.empty()) continue;  // only predictions that had been replaced
    schedule_->seconds = now;
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (const int32_t index : touched) {
      Advance(&classes_[index], now);
      StartWaiting(&classes_[index], now);
      Predict(&classes_[index], now);
    }
    ++schedule_->events;
  }
  if (done == tasks_.size()) return Status::Ok();
  return InvalidArgument("sim: ", tasks_.size() - done, " of ", tasks_.size(),
                         " tasks wait for each other");
}

}  // namespace

Status RunTasks(const std::vector<Task>& tasks,
                const std::vector<std::pair<int32_t, int32_t>>& edges,
                const std::vector<double>& slowdown, Schedule* schedule) {
  Engine engine(tasks, slowdown, schedule);
  ANABRANCH_RETURN_IF_ERROR(engine.Prepare(edges));
  return engine.Play();
}

}  // namespace anabranch::sim
