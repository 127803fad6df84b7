// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/program/launch_order.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "sim/engine/edge_lists.h"

namespace anabranch::sim {
namespace {

template <typename T>
using SmallestFirst = std::priority_queue<T, std::vector<T>, std::greater<>>;
using Pair = std::pair<int32_t, int32_t>;

int32_t Units(const Task& task) {
  if (task.stream != Stream::kCompute) return 2;
  return task.sm_seconds + task.hbm_seconds + task.fixed_seconds > 0 ? 1 : 0;
}

class ListScheduler {
 public:
  explicit ListScheduler(Program* program)
      : tasks_(program->tasks), edges_(tasks_.size(), program->edges) {
    int32_t classes = 0;
    for (const Task& task : tasks_) classes = std::max(classes, task.rank_class + 1);
    streams_.resize(static_cast<size_t>(classes) * kStreams);
  }

  void Run() {
    std::vector<int32_t> touched;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (edges_.missing[i] == 0) Wait(static_cast<int32_t>(i), &touched);
    }
    Start(0, &touched);
    while (!ends_.empty()) {
      const int32_t now = ends_.top().first;
      while (!ends_.empty() && ends_.top().first == now) {
        const int32_t task = ends_.top().second;
        ends_.pop();
        streams_[StreamOf(task)].busy = false;
        touched.push_back(StreamOf(task));
        for (int32_t i = edges_.first[task]; i < edges_.first[task + 1]; ++i) {
          if (--edges_.missing[edges_.next[i]] == 0) Wait(edges_.next[i], &touched);
        }
      }
      Start(now, &touched);
    }
  }

 private:
  struct Queue {
    SmallestFirst<Pair> waiting;  // by order, then number
    bool busy = false;
    int32_t started = 0;
  };

  int32_t StreamOf(int32_t task) const {
    return tasks_[task].rank_class * kStreams + static_cast<int32_t>(tasks_[task].stream);
  }

  void Wait(int32_t task, std::vector<int32_t>* touched) {
    streams_[StreamOf(task)].waiting.emplace(tasks_[task].order, task);
    touched->push_back(StreamOf(task));
  }

  void Start(int32_t now, std::vector<int32_t>* touched) {
    for (const int32_t index : *touched) {
      Queue& stream = streams_[index];
      if (stream.busy || stream.waiting.empty()) continue;
      const int32_t task = stream.waiting.top().second;
      stream.waiting.pop();
      stream.busy = true;
      tasks_[task].order = stream.started++;
      ends_.emplace(now + Units(tasks_[task]), task);
    }
    touched->clear();
  }

  std::vector<Task>& tasks_;
  EdgeLists edges_;
  std::vector<Queue> streams_;
  SmallestFirst<Pair> ends_;
};

}  // namespace

void SetLaunchOrder(Program* program) { ListScheduler(program).Run(); }

}  // namespace anabranch::sim
