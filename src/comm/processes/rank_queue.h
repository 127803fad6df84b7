// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_PROCESSES_RANK_QUEUE_H_
#define ANABRANCH_COMM_PROCESSES_RANK_QUEUE_H_

#include <chrono>
#include <functional>
#include <memory>

#include "base/status.h"
#include "comm/transport.h"

namespace anabranch {

// The calls of a rank that is a process of its own. A program may reach calls that do not depend on
// each other in any order, and in different orders on different ranks; a transport needs one order.
// The calls are therefore made on a thread of this object, in the order in which rank 0 reaches
// them.
//   Threads   Post may be called by any thread and returns at once. `done` may continue a whole
//             program: it runs on a thread that is free to block.
//   Errors    a call that this rank does not reach within the patience, while it waits with another
//             one, is answered with that other one, so that every rank gets an error naming both.
class RankQueue {
 public:
  struct Job {
    Call call;
    std::function<Status(const Call&, Transport&)> work;
    std::function<void(const Status&)> done;  // called once
  };

  // The transport must outlive the queue.
  RankQueue(Transport* transport, std::chrono::milliseconds patience);
  // No job may be under way.
  ~RankQueue();
  RankQueue(const RankQueue&) = delete;
  RankQueue& operator=(const RankQueue&) = delete;

  void Post(Job job);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_PROCESSES_RANK_QUEUE_H_
