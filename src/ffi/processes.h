// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_FFI_PROCESSES_H_
#define ANABRANCH_FFI_PROCESSES_H_

#include <chrono>
#include <cstdint>

#include "base/executor.h"
#include "comm/processes/rank_queue.h"

// This process as one rank among several, once Python has said so (anabranch_processes_start).

namespace anabranch::ffi {

// Where a handler believes to stand; must be where the process stands. group 0 is that of all
// processes, others are those that anabranch_processes_split made, numbered in their order.
struct Rank {
  int64_t rank;
  int64_t size;
  int64_t group;
};

// Hands over a call of this rank; done gets an error when the process is not such a rank.
void PostToProcesses(const Rank& rank, RankQueue::Job job);

// What a call's part is spread over, on the thread that makes the calls: a share of the processors,
// for the other ranks work at the same time. XLA's pool may be used while its handler runs and no
// longer.
Executor& ProcessExecutor();

// What Call::run of this process's calls is: the training step, or 0.
int64_t ProcessRun();

// Waits as long as a dispatch between processes is to be delayed: what a slower network would take
// (anabranch_set_dispatch_delay; nothing at first).
void DelayDispatch();

// How long a rank waits for the others (ANABRANCH_COMM_TIMEOUT_SECONDS), see meet.cc.
std::chrono::milliseconds CommTimeout();
void SetProcessTimeout(std::chrono::milliseconds timeout);

}  // namespace anabranch::ffi

#endif  // ANABRANCH_FFI_PROCESSES_H_
