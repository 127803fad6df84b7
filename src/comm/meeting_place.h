// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_MEETING_PLACE_H_
#define ANABRANCH_COMM_MEETING_PLACE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "comm/transport.h"

namespace anabranch {

// What one rank brings to a meeting.
struct Arrival {
  Call call;
  int64_t group = 0;  // which of the process's groups
  int rank = 0;
  int size = 0;
  const void* post = nullptr;  // for the others; alive until done is called
  // Runs once, on the thread of the rank that comes last, with the posts of all ranks.
  std::function<Status(std::span<const void* const> posts)> work;
  // Called exactly once with the meeting's status. For the rank that comes last: by its own thread,
  // before Arrive returns. For the others: on a thread that is free to block, see below.
  std::function<void(const Status&)> done;
};

// Where ranks that are threads of one process meet. Nobody waits inside: Arrive returns at once,
// and the rank that completes the meeting does the work for all.
//   Keys      ranks meet by (group, run, site) and, among equal ones, by how often each has come.
//             Two programs that run at the same time have different runs and so never meet.
//   Threads   Arrive may be called by any thread. done may continue a whole program, which may
//             block on anything: each done in flight therefore has a thread of its own. These
//             threads are kept, parked, for the next one.
//   Errors    kDeadlineExceeded for the ranks that came, when others did not within the time;
//             kInvalidArgument when operation, signature or size differ. Ranks that come later
//             get the same error. Afterwards everything is as before.
class MeetingPlace {
 public:
  explicit MeetingPlace(std::chrono::milliseconds timeout);
  // No meeting may be open.
  ~MeetingPlace();
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;

  void Arrive(Arrival arrival);
  // For meetings that begin from now on.
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_MEETING_PLACE_H_
