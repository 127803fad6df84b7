// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/processes/rank_queue.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/spare_threads.h"

namespace anabranch {
namespace {

bool Same(const Call& a, const Call& b) {
  return std::strcmp(a.operation, b.operation) == 0 && a.run == b.run && a.site == b.site;
}

}  // namespace

struct RankQueue::State {
  Transport* transport;
  std::chrono::milliseconds patience;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;
  bool stopping = false;
  SpareThreads threads;
  std::thread worker;

  void Loop();
  // The job that answers rank 0's next call; waits for it to be posted.
  Job Take(std::unique_lock<std::mutex>& lock, const Call& wanted);
};

RankQueue::Job RankQueue::State::Take(std::unique_lock<std::mutex>& lock, const Call& wanted) {
  auto found = jobs.end();
  changed.wait_for(lock, patience, [&] {
    found = std::find_if(jobs.begin(), jobs.end(),
                         [&](const Job& job) { return Same(job.call, wanted); });
    return found != jobs.end();
  });
  if (found == jobs.end()) found = jobs.begin();
  Job job = std::move(*found);
  jobs.erase(found);
  return job;
}

void RankQueue::State::Loop() {
  std::unique_lock<std::mutex> lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return stopping || !jobs.empty(); });
    if (jobs.empty()) return;
    Call first = jobs.front().call;
    lock.unlock();
    const Status order = transport->AwaitFirst(&first);
    lock.lock();
    Job job = Take(lock, order.ok() ? first : jobs.front().call);
    lock.unlock();
    const Status status = order.ok() ? job.work(job.call, *transport) : order;
    threads.Run([done = std::move(job.done), status] { done(status); });
    lock.lock();
  }
}

RankQueue::RankQueue(Transport* transport, std::chrono::milliseconds patience)
    : state_(std::make_unique<State>()) {
  state_->transport = transport;
  state_->patience = patience;
  state_->worker = std::thread([state = state_.get()] { state->Loop(); });
}

RankQueue::~RankQueue() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->worker.join();
}

void RankQueue::Post(Job job) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->jobs.push_back(std::move(job));
  }
  state_->changed.notify_all();
}

}  // namespace anabranch
