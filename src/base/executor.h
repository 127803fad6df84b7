// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_EXECUTOR_H_
#define ANABRANCH_BASE_EXECUTOR_H_

#include <cstdint>
#include <functional>

namespace anabranch {

// Spreads independent units of work over threads. Operations never create threads themselves:
// they take an Executor, so that inside XLA they run on XLA's own pool.
//   Order     units are handed out in ascending order; which worker runs which unit is not defined.
//             Results of an operation must therefore not depend on it (and in this library do not).
//   Blocking  a unit never waits for another unit: a pool may have a single thread.
//   Threads   ParallelFor may be called from several threads at once, not from inside a unit.
class Executor {
 public:
  virtual ~Executor() = default;

  // The largest number of units in flight, >= 1. Scratch is sized by it.
  virtual int num_workers() const = 0;

  // Calls unit(index, worker) once for each index in [0, num_units), 0 <= worker < num_workers(),
  // and returns when all have returned. Two units with the same worker never overlap in time.
  // Floating-point mode inside a unit is IEEE (subnormals kept), whatever the thread's own mode is.
  virtual void ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) = 0;
};

// Runs everything on the calling thread.
class SerialExecutor final : public Executor {
 public:
  int num_workers() const override { return 1; }
  void ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) override;
};

// num_threads - 1 threads of its own plus the caller. For tools, tests and C++ programs; the
// threads sleep while there is nothing to do. num_threads < 1 is taken as 1.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int num_threads);
  ~ThreadExecutor() override;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  int num_workers() const override;
  void ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) override;

 private:
  struct Pool;
  Pool* const pool_;
};

// The part of a parallel loop that every executor shares: an atomic unit counter, a worker number
// for each participant, and a count of finished units. Held by shared_ptr because a helper that a
// pool starts late finds the loop over and must still be able to read it.
class ParallelLoop {
 public:
  ParallelLoop(int64_t num_units, int max_workers, const std::function<void(int64_t, int)>* unit);
  ~ParallelLoop();
  ParallelLoop(const ParallelLoop&) = delete;
  ParallelLoop& operator=(const ParallelLoop&) = delete;

  // Takes units until none is left. Does nothing when all worker numbers are taken.
  void Participate();
  // Participates, then waits until every unit has returned. Spins briefly, then sleeps.
  void ParticipateAndWait();

 private:
  struct State;
  State* const state_;
};

}  // namespace anabranch

#endif  // ANABRANCH_BASE_EXECUTOR_H_
