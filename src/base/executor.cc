// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "base/executor.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/float_mode.h"

namespace anabranch {

void SerialExecutor::ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) {
  const ScopedIeeeMode ieee_mode;
  for (int64_t index = 0; index < num_units; ++index) unit(index, 0);
}

struct ParallelLoop::State {
  State(int64_t units, int workers, const std::function<void(int64_t, int)>* run)
      : num_units(units), max_workers(workers), unit(run) {}
  const int64_t num_units;
  const int max_workers;
  // Valid while a unit is left; a late helper never reads it.
  const std::function<void(int64_t, int)>* const unit;
  std::atomic<int64_t> next_unit{0};
  std::atomic<int64_t> finished_units{0};
  std::atomic<int> next_worker{0};
  std::mutex mutex;
  std::condition_variable all_finished;
};

ParallelLoop::ParallelLoop(int64_t num_units, int max_workers,
                           const std::function<void(int64_t, int)>* unit)
    : state_(new State(num_units, max_workers, unit)) {}

ParallelLoop::~ParallelLoop() { delete state_; }

void ParallelLoop::Participate() {
  State& state = *state_;
  if (state.next_unit.load(std::memory_order_relaxed) >= state.num_units) return;
  const int worker = state.next_worker.fetch_add(1);
  if (worker >= state.max_workers) return;
  const ScopedIeeeMode ieee_mode;
  int64_t mine = 0;
  for (int64_t index; (index = state.next_unit.fetch_add(1)) < state.num_units; ++mine) {
    (*state.unit)(index, worker);
  }
  if (mine == 0) return;
  if (state.finished_units.fetch_add(mine) + mine == state.num_units) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.all_finished.notify_all();
  }
}

void ParallelLoop::ParticipateAndWait() {
  Participate();
  State& state = *state_;
  const auto finished = [&state] { return state.finished_units.load() == state.num_units; };
  // About 20 us: longer than the last unit of a balanced loop, far shorter than a scheduler slice.
  for (int spin = 0; spin < 2000 && !finished(); ++spin) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  std::unique_lock<std::mutex> lock(state.mutex);
  state.all_finished.wait(lock, finished);
}

struct ThreadExecutor::Pool {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable work;
  std::shared_ptr<ParallelLoop> loop;  // the newest loop
  uint64_t generation = 0;
  bool stopping = false;

  void Run() {
    uint64_t seen = 0;
    while (true) {
      std::shared_ptr<ParallelLoop> mine;
      {
        std::unique_lock<std::mutex> lock(mutex);
        work.wait(lock, [&] { return stopping || generation != seen; });
        if (stopping) return;
        seen = generation;
        mine = loop;
      }
      mine->Participate();
    }
  }
};

ThreadExecutor::ThreadExecutor(int num_threads) : pool_(new Pool) {
  for (int i = 1; i < std::max(num_threads, 1); ++i) {
    pool_->threads.emplace_back([pool = pool_] { pool->Run(); });
  }
}

ThreadExecutor::~ThreadExecutor() {
  {
    const std::lock_guard<std::mutex> lock(pool_->mutex);
    pool_->stopping = true;
  }
  pool_->work.notify_all();
  for (std::thread& thread : pool_->threads) thread.join();
  delete pool_;
}

int ThreadExecutor::num_workers() const { return static_cast<int>(pool_->threads.size()) + 1; }

void ThreadExecutor::ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) {
  if (num_units <= 0) return;
  const auto loop = std::make_shared<ParallelLoop>(num_units, num_workers(), &unit);
  if (num_units > 1) {
    {
      const std::lock_guard<std::mutex> lock(pool_->mutex);
      pool_->loop = loop;
      ++pool_->generation;
    }
    pool_->work.notify_all();
  }
  loop->ParticipateAndWait();
}

}  // namespace anabranch
