// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/engine/engine.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "sim/engine/edge_lists.h"

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
  // Edges and classes are in range.
  Engine(const std::vector<Task>& tasks, const std::vector<std::pair<int32_t, int32_t>>& edges,
         const std::vector<double>& slowdown, Schedule* schedule)
      : tasks_(tasks),
        slowdown_(slowdown),
        schedule_(schedule),
        edges_(tasks.size(), edges),
        left_(tasks.size(), 1),
        duration_(tasks.size(), 0),
        version_(tasks.size(), 0),
        classes_(slowdown.size()) {}

  Status Play();

 private:
  struct Class {
    std::vector<int32_t> queue[kStreams];
    size_t next[kStreams] = {};  // the place in its queue of the task that goes next
    int32_t running[kStreams];
    double updated = 0;
  };

  void FillQueues();
  int32_t Ready(const Class& rank_class, int stream) const;
  bool StartReady(Class* rank_class, double now);
  void Advance(Class* rank_class, double now);
  void Predict(Class* rank_class, double now);
  double Duration(const Class& rank_class, int32_t task, double speed) const;
  void Finish(int32_t task, double now, std::vector<int32_t>* touched);

  const std::vector<Task>& tasks_;
  const std::vector<double>& slowdown_;
  Schedule* schedule_;
  EdgeLists edges_;
  std::vector<double> left_, duration_;  // share of a task left, and its length at today's rates
  std::vector<int64_t> version_;
  std::vector<Class> classes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<const Transfer*> transfers_;
  std::vector<double> speeds_;
};

void Engine::FillQueues() {
  for (Class& rank_class : classes_) std::fill_n(rank_class.running, kStreams, -1);
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const int stream = static_cast<int>(tasks_[i].stream);
    classes_[tasks_[i].rank_class].queue[stream].push_back(static_cast<int32_t>(i));
  }
  const auto by_order = [&](int32_t a, int32_t b) { return tasks_[a].order < tasks_[b].order; };
  for (Class& rank_class : classes_) {
    for (auto& queue : rank_class.queue) std::stable_sort(queue.begin(), queue.end(), by_order);
  }
}

// The task of the stream that goes next, -1 while something before it has not ended.
int32_t Engine::Ready(const Class& rank_class, int stream) const {
  const auto& queue = rank_class.queue[stream];
  if (rank_class.running[stream] >= 0 || rank_class.next[stream] >= queue.size()) return -1;
  const int32_t task = queue[rank_class.next[stream]];
  return edges_.missing[task] == 0 ? task : -1;
}

bool Engine::StartReady(Class* rank_class, double now) {
  bool any = false;
  for (int stream = 0; stream < kStreams; ++stream) {
    const int32_t task = Ready(*rank_class, stream);
    if (task < 0) continue;
    ++rank_class->next[stream];
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
  if (const int32_t next = Ready(own, stream); next >= 0) schedule_->cause[next] = task;
  for (int32_t i = edges_.first[task]; i < edges_.first[task + 1]; ++i) {
    const int32_t after = edges_.next[i];
    if (--edges_.missing[after] > 0) continue;
    schedule_->cause[after] = task;
    touched->push_back(tasks_[after].rank_class);
  }
}

Status Engine::Play() {
  size_t done = 0;
  std::vector<int32_t> touched;
  FillQueues();
  for (Class& rank_class : classes_) {
    if (StartReady(&rank_class, 0)) Predict(&rank_class, 0);
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
      StartReady(&classes_[index], now);
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
  const auto count = static_cast<int32_t>(tasks.size());
  for (const auto& [before, after] : edges) {
    if (before < 0 || before >= count || after < 0 || after >= count) {
      return InvalidArgument("sim: edge ", before, " -> ", after, " is not between ", count,
                             " tasks");
    }
  }
  const auto classes = static_cast<int32_t>(slowdown.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].rank_class < 0 || tasks[i].rank_class >= classes) {
      return InvalidArgument("sim: task ", i, ": rank_class=", tasks[i].rank_class, " of ",
                             classes);
    }
  }
  schedule->start.assign(tasks.size(), 0);
  schedule->end.assign(tasks.size(), 0);
  schedule->cause.assign(tasks.size(), -1);
  schedule->seconds = 0;
  schedule->events = 0;
  return Engine(tasks, edges, slowdown, schedule).Play();
}

}  // namespace anabranch::sim
