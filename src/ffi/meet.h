// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_FFI_MEET_H_
#define ANABRANCH_FFI_MEET_H_

#include <memory>
#include <span>
#include <vector>

#include "comm/meeting_place.h"
#include "comm/transport.h"
#include "ffi/ffi_support.h"
#include "ffi/processes.h"
#include "ffi/timeline.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

// How the handlers of the ranks of a group meet. A handler posts its arguments and returns a
// future. Among devices of one process, the one that comes last does the work for all; among
// processes, each does its part on a thread of its own. No thread of XLA's pools ever waits for
// another rank, so that a pool of two threads serves eight devices, whatever else they wait for.

namespace anabranch::ffi {

// The process's meeting place: the one object with state in this library. It is never destroyed,
// because devices may still run when the process ends.
MeetingPlace& ProcessMeetingPlace();

// Who calls: place is [rank, group] i32. Ranks of one group meet; site tells apart the calls of one
// program. processes: ranks are processes, else devices of this one; the group is then as in Rank.
struct Caller {
  xffi::RunId run;
  xffi::ThreadPool pool;
  ConstTensorView place;
  int64_t ranks;
  int64_t site;
  bool processes = false;
};

// XLA runs its programs with subnormals flushed to zero; a program that continues on another thread
// must find the mode that it had.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) {}
  void Set() const { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  void Set() const {}
#endif
};

// Among devices work(posts, executor), with every rank's Args, among processes
// part(args, call, transport, executor); ranks that pass different signatures get an error.
template <typename Args, typename Work, typename Part>
xffi::Future Meet(const char* operation, const Caller& caller, int64_t signature, const Args& args,
                  Work work, Part part) {
  struct Post {
    Args args;
    xffi::Promise promise;
    FloatMode mode;
  };
  const auto post = std::make_shared<Post>(Post{args, {}, {}});
  xffi::Future future(post->promise);
  const bool valid = caller.place.HasShape({2}) && caller.place.dtype() == DType::kI32;
  const int32_t* place = valid ? caller.place.as<int32_t>() : nullptr;
  const auto done = [post](const Status& status) {
    post->mode.Set();
    if (status.ok()) {
      post->promise.SetAvailable();
    } else {
      post->promise.SetError(ToError(status));
    }
  };
  if (caller.processes) {
    const Rank rank = {valid ? place[0] : -1, caller.ranks, valid ? place[1] : 0};
    PostToProcesses(rank, {{operation, ProcessRun(), caller.site, signature},
                           [post, part](const Call& call, Transport& transport) {
                             const ScopedSpan span(Track::kExchange, call.operation, call.site);
                             return part(post->args, call, transport, ProcessExecutor());
                           },
                           done});
    return future;
  }
  ProcessMeetingPlace().Arrive({.call = {operation, caller.run.run_id, caller.site, signature},
                                .group = valid ? place[1] : 0,
                                .rank = valid ? place[0] : -1,
                                .size = static_cast<int>(caller.ranks),
                                .post = &post->args,
                                .work =
                                    [pool = caller.pool, site = caller.site, operation,
                                     work](std::span<const void* const> posts) {
                                      const ScopedSpan span(Track::kExchange, operation, site);
                                      std::vector<const Args*> all;
                                      for (const void* one : posts)
                                        all.push_back(static_cast<const Args*>(one));
                                      XlaExecutor executor(pool);
                                      return work(std::span<const Args* const>(all), executor);
                                    },
                                .done = done});
  return future;
}

}  // namespace anabranch::ffi

#endif  // ANABRANCH_FFI_MEET_H_
