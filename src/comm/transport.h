// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_TRANSPORT_H_
#define ANABRANCH_COMM_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"

namespace anabranch {

// Which collective call this is. Every rank of a group passes the same values; ranks that call
// different operations at the same place get an error that names both.
struct Call {
  const char* operation = "";  // static storage
  int64_t run = 0;             // one execution of a program
  int64_t site = 0;            // one place in the program's text
  int64_t signature = 0;       // whatever else must agree: a hash of sizes and types
};

// Bytes `begin` to `end` - 1.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Memory of one rank that the others may touch during a call.
struct Window {
  void* data = nullptr;
  int64_t bytes = 0;
  // kPeersRead: parts of it that no other rank reads, ascending; they need not travel.
  std::span<const ByteRange> kept = {};
};

enum class Access {
  kPeersRead,   // a window holds data when the call begins
  kPeersWrite,  // a window holds data when the call ends; bytes that nobody writes are undefined
};

// How the ranks of one group reach each other. Two collectives carry expert parallelism: counts are
// gathered, and rows are written to, or read from, windows.
//   Order     all ranks of a group make the same calls; calls with equal (run, site) in the same
//             order.
//   Blocking  a call returns when every rank has done its part, or with an error. A waiting rank
//             is parked and uses no processor.
//   Errors    kDeadlineExceeded: a rank did not come in time; the message names rank, operation,
//             run and site. kInvalidArgument: ranks disagree about the call. The error of one
//             rank's body is returned on every rank, with the rank's number, and the transport
//             stays usable. (So it does after every error in one process; between processes ranks
//             that disagree or came late stay out of step, and every later call fails.)
//   Threads   one object is one rank's end and is used by one thread at a time; different ranks'
//             ends may live in different threads or processes.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // all[r * bytes, (r + 1) * bytes) = what rank r passed as mine. bytes may be 0.
  virtual Status AllGather(const Call& call, const void* mine, int64_t bytes, void* all) = 0;

  // peers[r * windows.size() + w] is window w of rank r as this rank reaches it. All ranks pass the
  // same number of windows; sizes may differ, and be 0. The body runs once, on this thread, after
  // every rank has come; the windows are settled when Share returns.
  using Body = std::function<Status(std::span<const Window> peers)>;
  virtual Status Share(const Call& call, std::span<const Window> windows, Access access,
                       const Body& body) = 0;

  // Whether windows that peers read are read in place, or in one copy for all: what several ranks
  // want of a window is then better read by each than written to each.
  virtual bool shares_memory() const { return false; }

  // For a rank that could make one of several calls: waits until rank 0 has begun its next call and
  // puts that in *call, whose fields are those of a call to name in an error. The operation's text
  // lives until this rank's next call. Rank 0, and a transport that needs no order, leave *call.
  virtual Status AwaitFirst(Call* call) {
    static_cast<void>(call);
    return Status::Ok();
  }
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_TRANSPORT_H_
