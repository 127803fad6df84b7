// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/processes/host_transport.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/context.h"
#include "base/stream_copy.h"
#include "comm/processes/shared_memory.h"

namespace anabranch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxWindows = 128;  // rows and weights of 64 waves
constexpr int64_t kArenaGranule =
    2 << 20;  // a large page, where the system gives them to shared memory

// What a rank says about its present call. Two of them alternate: a rank is at most one call ahead
// of a rank that still reads the older.
struct Record {
  char operation[48];
  int64_t run, site, signature;
  int64_t num_windows;
  int64_t bytes[kMaxWindows];
  int64_t arena_bytes;
  int32_t code;
  char message[256];
};

struct Control {
  alignas(64) std::atomic<uint32_t> progress;  // barriers that the rank has reached
  std::atomic<uint32_t> calls;                 // calls that it has begun
  // The rank that it awaits in this or a part of the transport, plus 1, or 0: a hint for errors.
  std::atomic<int32_t> awaits;
  Record records[2];
};

// How the others find a rank's memory.
struct Address {
  int64_t pid;
  int32_t control;
  int32_t arena;
};

void CopyText(const std::string& text, char* to, size_t size) {
  const size_t count = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

std::string Describe(const char* operation, int64_t run, int64_t site) {
  return std::string(operation) + " (run " + std::to_string(run) + ", site " +
         std::to_string(site) + ")";
}

// One rank's memory, and its process, as this process sees them.
struct Peer {
  Peer(const Address& at, int known_as) : address(at), name(known_as), process(at.pid) {}

  const Address address;
  const int name;  // what errors call the rank
  ProcessWatch process;
  SharedMemory control_memory;
  SharedMemory arena;
  Control& control() { return *reinterpret_cast<Control*>(control_memory.data()); }
  // Differences, so that the count may wrap.
  bool HasReached(uint32_t goal) {
    return static_cast<int32_t>(control().progress.load(std::memory_order_acquire) - goal) >= 0;
  }
  // A rank that has come this far and then ended is none of the call's business.
  bool EndedBefore(uint32_t goal) {
    return !HasReached(goal) && process.ended() && !HasReached(goal);
  }
};

}  // namespace

struct HostTransport::State {
  int rank = 0;
  int size = 1;
  std::atomic<int64_t> timeout_ms{0};
  std::vector<std::unique_ptr<Peer>> peers;
  uint32_t calls = 0;
  Status broken;

  Record& record_of(int r) { return peers[r]->control().records[calls % 2]; }
  const State* whole = this;  // of which this is a part, or all
  int name(int r) const { return peers[r]->name; }
  Control& whole_control(int r) const { return whole->peers[name(r)]->control(); }
};

namespace {

// What a rank says that waited in vain: for a peer that has ended, or too long for one or more.
struct Missing {
  Peer* peer;
  int32_t awaits;  // as in Control
};
Status Absent(const Call& call, int waiting, const std::vector<Missing>& missing, bool ended,
              std::chrono::milliseconds timeout) {
  Peer& peer = *missing[0].peer;
  std::ostringstream text;
  text << Describe(call.operation, call.run, call.site) << ": rank " << peer.name;
  if (ended) {
    text << " (process " << peer.address.pid << ") has ended";
  } else {
    text << " did not come within " << static_cast<double>(timeout.count()) / 1000 << " s";
  }
  if (missing[0].awaits > 0) text << " (it waited for rank " << missing[0].awaits - 1 << ")";
  for (size_t other = 1; other < missing.size(); ++other) {
    text << ", nor did rank " << missing[other].peer->name;
  }
  text << "; rank " << waiting << " waited; ";
  const Control& control = peer.control();
  const Record& last = control.records[control.calls.load(std::memory_order_relaxed) % 2];
  if (last.operation[0] == '\0') {
    text << "rank " << peer.name << " had made no call";
  } else {
    text << "the last call of rank " << peer.name << " was "
         << Describe(last.operation, last.run, last.site);
  }
  return Status(StatusCode::kDeadlineExceeded, text.str());
}

// What other ranks read of a window, to the same place in `to`.
void CopyOut(const Window& window, char* to) {
  const CopyRow copy = Copier(window.bytes);
  const char* from = static_cast<const char*>(window.data);
  const auto move = [&](int64_t begin, int64_t end) {
    if (begin < end) copy(to + begin, from + begin, end - begin);
  };
  int64_t begin = 0;
  for (const ByteRange& kept : window.kept) {
    move(begin, kept.begin);
    begin = kept.end;
  }
  move(begin, window.bytes);
}

}  // namespace

HostTransport::HostTransport(std::unique_ptr<State> state) : state_(std::move(state)) {}
HostTransport::~HostTransport() = default;

int HostTransport::rank() const { return state_->rank; }
int HostTransport::size() const { return state_->size; }
void HostTransport::set_timeout(std::chrono::milliseconds timeout) {
  state_->timeout_ms = timeout.count();
}

Status HostTransport::Create(int rank, int size, std::chrono::milliseconds timeout,
                             const Gather& gather, std::unique_ptr<HostTransport>* transport) {
  auto state = std::make_unique<State>();
  state->rank = rank;
  state->size = size;
  state->timeout_ms = timeout.count();
  std::vector<int> names(size);
  std::iota(names.begin(), names.end(), 0);
  return Connect(names, gather, std::move(state), transport);
}

Status HostTransport::CreatePart(const HostTransport& whole, const std::vector<int>& members,
                                 std::chrono::milliseconds timeout, const Gather& gather,
                                 std::unique_ptr<HostTransport>* transport) {
  const auto found = std::find(members.begin(), members.end(), whole.rank());
  if (found == members.end()) {
    return InvalidArgument("rank ", whole.rank(), " is not in its own group");
  }
  auto state = std::make_unique<State>();
  state->rank = static_cast<int>(found - members.begin());
  state->size = static_cast<int>(members.size());
  state->timeout_ms = timeout.count();
  state->whole = whole.state_.get();
  return Connect(members, gather, std::move(state), transport);
}

Status HostTransport::Connect(const std::vector<int>& names, const Gather& gather,
                              std::unique_ptr<State> state,
                              std::unique_ptr<HostTransport>* transport) {
  const int rank = state->rank;
  const int size = state->size;
  const int64_t pid = getpid();
  auto mine = std::make_unique<Peer>(Address{pid, -1, -1}, names[rank]);
  Status status = mine->control_memory.Create(sizeof(Control));
  if (status.ok()) status = mine->arena.Create(kArenaGranule);
  const Address address = {pid, mine->control_memory.descriptor(), mine->arena.descriptor()};
  std::vector<Address> addresses(size);
  ANABRANCH_RETURN_IF_ERROR(gather(&address, sizeof(Address), addresses.data()));
  for (int other = 0; other < size; ++other) {
    if (other == rank) {
      state->peers.push_back(std::move(mine));
      continue;
    }
    auto peer = std::make_unique<Peer>(addresses[other], names[other]);
    if (status.ok()) {
      status = peer->control_memory.Open(peer->address.pid, peer->address.control, sizeof(Control));
    }
    if (status.ok()) {
      status = peer->arena.Open(peer->address.pid, peer->address.arena, kArenaGranule);
    }
    state->peers.push_back(std::move(peer));
  }
  // Nobody goes on alone: the others would wait for a rank that could not reach them.
  const int32_t code = static_cast<int32_t>(status.code());
  std::vector<int32_t> codes(size);
  ANABRANCH_RETURN_IF_ERROR(gather(&code, sizeof(code), codes.data()));
  for (int other = 0; status.ok() && other < size; ++other) {
    if (codes[other] == 0) continue;
    status = MakeStatus(static_cast<StatusCode>(codes[other]), "rank ", names[other],
                        " cannot share memory with the others; all must be on one host");
  }
  if (status.ok()) transport->reset(new HostTransport(std::move(state)));
  return status;
}

Status HostTransport::AwaitRank(const Call& call, int other, uint32_t goal) {
  State& s = *state_;
  Peer& peer = *s.peers[other];
  std::atomic<uint32_t>& theirs = peer.control().progress;
  std::atomic<int32_t>& awaiting = s.whole_control(s.rank).awaits;
  const std::chrono::milliseconds timeout(s.timeout_ms.load(std::memory_order_relaxed));
  const Clock::time_point deadline = Clock::now() + timeout;
  for (uint32_t seen = theirs.load(std::memory_order_acquire); !peer.HasReached(goal);
       seen = theirs.load(std::memory_order_acquire)) {
    const auto missing = [&s](int r) {
      const int32_t awaits = s.whole_control(r).awaits.load(std::memory_order_relaxed);
      // Of these ranks this one knows itself which have come.
      const bool here = std::any_of(s.peers.begin(), s.peers.end(),
                                    [&](const auto& peer) { return peer->name + 1 == awaits; });
      return Missing{s.peers[r].get(), here ? 0 : awaits};
    };
    for (int any = 0; any < s.size; ++any) {
      if (!s.peers[any]->EndedBefore(goal)) continue;
      s.broken = Absent(call, s.name(s.rank), {missing(any)}, /*ended=*/true, timeout);
      return s.broken;
    }
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) {
      std::vector<Missing> all = {missing(other)};
      for (int any = 0; any < s.size; ++any) {
        const bool counted = any == s.rank || any == other;
        if (!counted && !s.peers[any]->HasReached(goal)) all.push_back(missing(any));
      }
      s.broken = Absent(call, s.name(s.rank), all, /*ended=*/false, timeout);
      return s.broken;
    }
    // Told anew in every round: a call of another part may have taken it back.
    awaiting.store(peer.name + 1, std::memory_order_relaxed);
    FutexWait(&theirs, seen,
              std::min<std::chrono::nanoseconds>(
                  kLivenessPeriod, std::chrono::duration_cast<std::chrono::nanoseconds>(left)));
  }
  awaiting.store(0, std::memory_order_relaxed);
  return Status::Ok();
}

Status HostTransport::Barrier(const Call& call) {
  State& s = *state_;
  std::atomic<uint32_t>& mine = s.peers[s.rank]->control().progress;
  const uint32_t goal = mine.load(std::memory_order_relaxed) + 1;
  mine.store(goal, std::memory_order_release);
  FutexWakeAll(&mine);
  for (int other = 0; other < s.size; ++other) {
    if (other != s.rank) ANABRANCH_RETURN_IF_ERROR(AwaitRank(call, other, goal));
  }
  return Status::Ok();
}

Status HostTransport::AwaitFirst(Call* call) {
  State& s = *state_;
  ANABRANCH_RETURN_IF_ERROR(s.broken);
  if (s.rank == 0) return Status::Ok();
  const uint32_t mine = s.peers[s.rank]->control().progress.load(std::memory_order_relaxed);
  ANABRANCH_RETURN_IF_ERROR(AwaitRank(*call, 0, mine + 1));
  // Rank 0 cannot begin another call before this rank has joined this one.
  const Record& first = s.peers[0]->control().records[(s.calls + 1) % 2];
  *call = {first.operation, first.run, first.site, first.signature};
  return Status::Ok();
}

Status HostTransport::Begin(const Call& call, int64_t bytes, std::span<const Window> windows) {
  State& s = *state_;
  ANABRANCH_RETURN_IF_ERROR(s.broken);
  if (windows.size() > kMaxWindows) {
    return InvalidArgument("transport: ", windows.size(), " windows; at most ", kMaxWindows);
  }
  ++s.calls;
  Peer& me = *s.peers[s.rank];
  Record& mine = s.record_of(s.rank);
  mine = {};
  CopyText(call.operation, mine.operation, sizeof(mine.operation));
  mine.run = call.run;
  mine.site = call.site;
  mine.signature = call.signature;
  mine.num_windows = static_cast<int64_t>(windows.size());
  mine.bytes[0] = bytes;
  for (size_t w = 0; w < windows.size(); ++w) mine.bytes[w] = windows[w].bytes;
  int64_t needed = 0;
  for (const int64_t one : mine.bytes) needed += RoundUp(one, kCacheLineBytes);
  if (needed > me.arena.bytes()) {
    // Half as much again, so that slowly growing steps do not map anew each time. A rank that gets
    // no memory must still come: the others read it in the record.
    const Status grown = me.arena.Grow(RoundUp(needed + needed / 2, kArenaGranule));
    mine.code = static_cast<int32_t>(grown.code());
    CopyText(grown.message(), mine.message, sizeof(mine.message));
  }
  mine.arena_bytes = me.arena.bytes();
  me.control().calls.store(s.calls, std::memory_order_relaxed);
  ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  const Record& first = s.record_of(0);
  for (int rank = 0; rank < s.size; ++rank) {
    const Record& theirs = s.record_of(rank);
    if (std::strcmp(theirs.operation, first.operation) != 0 || theirs.run != first.run ||
        theirs.site != first.site) {
      s.broken = InvalidArgument(
          "rank ", s.name(rank), " calls ", Describe(theirs.operation, theirs.run, theirs.site),
          " where rank ", s.name(0), " calls ", Describe(first.operation, first.run, first.site));
      return s.broken;
    }
    if (theirs.signature != first.signature || theirs.num_windows != first.num_windows) {
      s.broken = InvalidArgument(call.operation, ": rank ", s.name(rank), " and rank ", s.name(0),
                                 " pass arguments of different sizes or types");
      return s.broken;
    }
    if (theirs.code != 0) {
      s.broken = Status(static_cast<StatusCode>(theirs.code),
                        "rank " + std::to_string(s.name(rank)) + ": " + theirs.message);
      return s.broken;
    }
    if (rank != s.rank) {
      s.broken = s.peers[rank]->arena.Grow(theirs.arena_bytes);
      ANABRANCH_RETURN_IF_ERROR(s.broken);
    }
  }
  return Status::Ok();
}

Status HostTransport::AllGather(const Call& call, const void* mine, int64_t bytes, void* all) {
  State& s = *state_;
  ANABRANCH_RETURN_IF_ERROR(Begin(call, bytes, {}));
  for (int rank = 0; rank < s.size; ++rank) {
    if (s.record_of(rank).bytes[0] == s.record_of(0).bytes[0]) continue;
    s.broken = InvalidArgument(call.operation, ": rank ", s.name(rank), " gathers ",
                               s.record_of(rank).bytes[0], " bytes, rank ", s.name(0), " ",
                               s.record_of(0).bytes[0]);
    return s.broken;
  }
  if (bytes > 0) std::memcpy(s.peers[s.rank]->arena.data(), mine, bytes);
  ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  for (int rank = 0; bytes > 0 && rank < s.size; ++rank) {
    std::memcpy(static_cast<char*>(all) + rank * bytes, s.peers[rank]->arena.data(), bytes);
  }
  return Status::Ok();
}

Status HostTransport::Share(const Call& call, std::span<const Window> windows, Access access,
                            const Body& body) {
  State& s = *state_;
  ANABRANCH_RETURN_IF_ERROR(Begin(call, 0, windows));
  const size_t count = windows.size();
  std::vector<Window> peers(count * s.size);
  for (int rank = 0; rank < s.size; ++rank) {
    char* at = s.peers[rank]->arena.data();
    for (size_t w = 0; w < count; ++w) {
      const int64_t bytes = s.record_of(rank).bytes[w];
      peers[rank * count + w] = {at, bytes};
      at += RoundUp(bytes, kCacheLineBytes);
    }
  }
  const std::span<Window> shared = std::span(peers).subspan(s.rank * count, count);
  if (access == Access::kPeersRead) {
    for (size_t w = 0; w < count; ++w) {
      CopyOut(windows[w], static_cast<char*>(shared[w].data));
      shared[w] = windows[w];
    }
    StreamFence();
    ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  }
  const Status status = body(peers);
  Record& mine = s.record_of(s.rank);
  mine.code = static_cast<int32_t>(status.code());
  CopyText(status.message(), mine.message, sizeof(mine.message));
  ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  for (int rank = 0; rank < s.size; ++rank) {
    const Record& record = s.record_of(rank);
    if (record.code == 0) continue;
    return Status(static_cast<StatusCode>(record.code),
                  "rank " + std::to_string(s.name(rank)) + ": " + record.message);
  }
  for (size_t w = 0; access == Access::kPeersWrite && w < count; ++w) {
    if (windows[w].bytes == 0) continue;
    Copier(windows[w].bytes)(static_cast<char*>(windows[w].data),
                             static_cast<const char*>(shared[w].data), windows[w].bytes);
  }
  StreamFence();
  return Status::Ok();
}

}  // namespace anabranch
