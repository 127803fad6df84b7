// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_SPARE_THREADS_H_
#define ANABRANCH_COMM_SPARE_THREADS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace anabranch {

// Runs each function on a thread that nothing else needs; keeps the threads.
class SpareThreads {
 public:
  ~SpareThreads() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(std::function<void()> function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back(std::move(function));
    if (pending_.size() > idle_) {
      threads_.emplace_back([this] { Loop(); });
      ++idle_;  // it is: its first act is to take a function
    } else {
      work_.notify_one();
    }
  }

 private:
  void Loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stopping_ || !pending_.empty(); });
      if (pending_.empty()) return;
      const std::function<void()> function = std::move(pending_.front());
      pending_.pop_front();
      --idle_;
      lock.unlock();
      function();
      lock.lock();
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::function<void()>> pending_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_SPARE_THREADS_H_
