// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_transport.h"

#include <linux/futex.h>
#include <mpi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/context.h"
#include "comm/stream_copy.h"

namespace anabranch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxWindows = 4;

// What a rank says about its present call. Two of them alternate: a rank is at most one call ahead
// of a rank that still reads the older.
struct Record {
  char operation[48];
  int64_t run, site, signature;
  int64_t num_windows;
  int64_t bytes[kMaxWindows];
  int32_t code;
  char message[256];
};

struct Control {
  alignas(64) std::atomic<uint32_t> progress;  // barriers that the rank has reached
  Record records[2];
};

// Not private to a process: the words lie in shared memory.
void FutexWait(std::atomic<uint32_t>* word, uint32_t value, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit = {static_cast<time_t>(seconds.count()),
                          static_cast<long>((timeout - seconds).count())};  // NOLINT(runtime/int)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, value, &limit, nullptr, 0);
}
void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void CopyText(const std::string& text, char* to, size_t size) {
  const size_t count = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

// The thread that calls MPI.
class MpiThread {
 public:
  MpiThread() : thread_([this] { Loop(); }) {}
  ~MpiThread() {
    Run([this] { stopping_ = true; });
    thread_.join();
  }
  // Runs the function on the thread and waits for it.
  void Run(const std::function<void()>& function) {
    std::unique_lock<std::mutex> lock(mutex_);
    function_ = &function;
    changed_.notify_all();
    changed_.wait(lock, [this] { return function_ == nullptr; });
  }

 private:
  void Loop() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      changed_.wait(lock, [this] { return function_ != nullptr; });
      (*function_)();
      function_ = nullptr;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* function_ = nullptr;
  bool stopping_ = false;
  std::thread thread_;
};

// One piece of shared memory for each rank, reached by all. For the MPI thread alone. Segments of
// a window lie at any address (Open MPI: 8 mod 64), so each is aligned by hand.
struct SharedSegments {
  MPI_Win window = MPI_WIN_NULL;
  std::vector<char*> segments;

  void Allocate(MPI_Comm comm, int size, int64_t bytes) {
    char* mine = nullptr;
    MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + kCacheLineBytes), 1, MPI_INFO_NULL, comm,
                            &mine, &window);
    segments.assign(size, nullptr);
    for (int rank = 0; rank < size; ++rank) {
      MPI_Aint length = 0;
      int unit = 0;
      MPI_Win_shared_query(window, rank, &length, &unit, &segments[rank]);
      // Pages are mapped at page boundaries in every process: residues mod 64 agree.
      const auto address = reinterpret_cast<uintptr_t>(segments[rank]);
      segments[rank] += (kCacheLineBytes - address % kCacheLineBytes) % kCacheLineBytes;
    }
  }
  void Free() {
    if (window != MPI_WIN_NULL) MPI_Win_free(&window);
  }
};

}  // namespace

struct MpiTransport::State {
  MpiThread mpi;
  MPI_Comm comm = MPI_COMM_NULL;
  bool began_mpi = false;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
  SharedSegments control;
  SharedSegments arena;
  int64_t arena_bytes = 0;
  int64_t calls = 0;
  Status broken;

  Control& control_of(int r) { return *reinterpret_cast<Control*>(control.segments[r]); }
  Record& record_of(int r) { return control_of(r).records[calls % 2]; }
};

MpiTransport::MpiTransport(std::unique_ptr<State> state) : state_(std::move(state)) {}

int MpiTransport::rank() const { return state_->rank; }
int MpiTransport::size() const { return state_->size; }

Status MpiTransport::Create(std::chrono::milliseconds timeout,
                            std::unique_ptr<MpiTransport>* transport) {
  auto state = std::make_unique<State>();
  state->timeout = timeout;
  Status status;
  state->mpi.Run([&] {
    int initialized = 0;
    MPI_Initialized(&initialized);
    int level = MPI_THREAD_SINGLE;
    if (initialized != 0) {
      MPI_Query_thread(&level);
      if (level < MPI_THREAD_MULTIPLE) {
        status = MakeStatus(StatusCode::kUnimplemented,
                            "mpi: MPI was initialised without MPI_THREAD_MULTIPLE");
        return;
      }
    } else {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
      state->began_mpi = true;
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &state->comm);
    MPI_Comm_rank(state->comm, &state->rank);
    MPI_Comm_size(state->comm, &state->size);
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(state->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    int on_host = 0;
    MPI_Comm_size(host, &on_host);
    MPI_Comm_free(&host);
    if (on_host != state->size) {
      status = MakeStatus(StatusCode::kUnimplemented, "mpi: ", on_host, " of ", state->size,
                          " ranks are on this host; all must be");
      return;
    }
    state->control.Allocate(state->comm, state->size, sizeof(Control));
    std::memset(state->control.segments[state->rank], 0, sizeof(Control));
    MPI_Barrier(state->comm);
  });
  if (status.ok()) transport->reset(new MpiTransport(std::move(state)));
  return status;
}

MpiTransport::~MpiTransport() {
  State& s = *state_;
  // A rank that is out of step must not wait for the others: the end of the process frees all.
  if (!s.broken.ok()) return;
  s.mpi.Run([&s] {
    s.arena.Free();
    s.control.Free();
    if (s.comm != MPI_COMM_NULL) MPI_Comm_free(&s.comm);
    if (s.began_mpi) MPI_Finalize();
  });
}

Status MpiTransport::Barrier(const Call& call) {
  State& s = *state_;
  std::atomic<uint32_t>& mine = s.control_of(s.rank).progress;
  const uint32_t goal = mine.load(std::memory_order_relaxed) + 1;
  mine.store(goal, std::memory_order_release);
  FutexWakeAll(&mine);
  const Clock::time_point deadline = Clock::now() + s.timeout;
  for (int rank = 0; rank < s.size; ++rank) {
    std::atomic<uint32_t>& theirs = s.control_of(rank).progress;
    // Differences, so that the count may wrap.
    for (uint32_t seen;
         static_cast<int32_t>((seen = theirs.load(std::memory_order_acquire)) - goal) < 0;) {
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) {
        s.broken = MakeStatus(StatusCode::kDeadlineExceeded, call.operation, " (run ", call.run,
                              ", site ", call.site, "): rank ", rank, " did not come within ",
                              static_cast<double>(s.timeout.count()) / 1000, " s; rank ", s.rank,
                              " waited");
        return s.broken;
      }
      FutexWait(&theirs, seen, std::chrono::duration_cast<std::chrono::nanoseconds>(left));
    }
  }
  return Status::Ok();
}

Status MpiTransport::Begin(const Call& call, int64_t bytes, std::span<const Window> windows) {
  State& s = *state_;
  ANABRANCH_RETURN_IF_ERROR(s.broken);
  if (windows.size() > kMaxWindows) {
    return InvalidArgument("mpi: ", windows.size(), " windows; at most ", kMaxWindows);
  }
  ++s.calls;
  Record& mine = s.record_of(s.rank);
  mine = {};
  CopyText(call.operation, mine.operation, sizeof(mine.operation));
  mine.run = call.run;
  mine.site = call.site;
  mine.signature = call.signature;
  mine.num_windows = static_cast<int64_t>(windows.size());
  mine.bytes[0] = bytes;
  for (size_t w = 0; w < windows.size(); ++w) mine.bytes[w] = windows[w].bytes;
  ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  int64_t needed = 0;
  for (int rank = 0; rank < s.size; ++rank) {
    const Record& theirs = s.record_of(rank);
    const Record& first = s.record_of(0);
    if (std::strcmp(theirs.operation, first.operation) != 0 || theirs.run != first.run ||
        theirs.site != first.site) {
      s.broken = InvalidArgument("rank ", rank, " calls ", theirs.operation, " (run ", theirs.run,
                                 ", site ", theirs.site, ") where rank 0 calls ", first.operation,
                                 " (run ", first.run, ", site ", first.site, ")");
      return s.broken;
    }
    if (theirs.signature != first.signature || theirs.num_windows != first.num_windows) {
      s.broken = InvalidArgument(call.operation, ": rank ", rank,
                                 " and rank 0 pass arguments of different sizes or types");
      return s.broken;
    }
    int64_t total = 0;
    for (const int64_t one : theirs.bytes) total += RoundUp(one, kCacheLineBytes);
    needed = std::max(needed, total);
  }
  if (needed <= s.arena_bytes) return Status::Ok();
  // Half as much again, so that slowly growing steps do not reallocate each time. All ranks agree.
  s.arena_bytes = needed + needed / 2;
  s.mpi.Run([&s] {
    s.arena.Free();
    s.arena.Allocate(s.comm, s.size, s.arena_bytes);
  });
  return Status::Ok();
}

Status MpiTransport::AllGather(const Call& call, const void* mine, int64_t bytes, void* all) {
  State& s = *state_;
  ANABRANCH_RETURN_IF_ERROR(Begin(call, bytes, {}));
  for (int rank = 0; rank < s.size; ++rank) {
    if (s.record_of(rank).bytes[0] == s.record_of(0).bytes[0]) continue;
    s.broken =
        InvalidArgument(call.operation, ": rank ", rank, " gathers ", s.record_of(rank).bytes[0],
                        " bytes, rank 0 ", s.record_of(0).bytes[0]);
    return s.broken;
  }
  if (bytes > 0) std::memcpy(s.arena.segments[s.rank], mine, bytes);
  ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  for (int rank = 0; bytes > 0 && rank < s.size; ++rank) {
    std::memcpy(static_cast<char*>(all) + rank * bytes, s.arena.segments[rank], bytes);
  }
  return Status::Ok();
}

Status MpiTransport::Share(const Call& call, std::span<const Window> windows, Access access,
                           const Body& body) {
  State& s = *state_;
  ANABRANCH_RETURN_IF_ERROR(Begin(call, 0, windows));
  const size_t count = windows.size();
  std::vector<void*> peers(count * s.size);
  for (int rank = 0; rank < s.size; ++rank) {
    char* at = s.arena.segments.empty() ? nullptr : s.arena.segments[rank];
    for (size_t w = 0; w < count; ++w) {
      peers[rank * count + w] = at;
      at += RoundUp(s.record_of(rank).bytes[w], kCacheLineBytes);
    }
  }
  const auto move = [&](bool out) {
    for (size_t w = 0; w < count; ++w) {
      char* shared = static_cast<char*>(peers[s.rank * count + w]);
      char* own = static_cast<char*>(windows[w].data);
      const int64_t bytes = windows[w].bytes;
      if (bytes > 0) Copier(bytes)(out ? shared : own, out ? own : shared, bytes);
    }
    StreamFence();
  };
  if (access == Access::kPeersRead) {
    move(/*out=*/true);
    ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  }
  const Status status = body(peers.data());
  Record& mine = s.record_of(s.rank);
  mine.code = static_cast<int32_t>(status.code());
  CopyText(status.message(), mine.message, sizeof(mine.message));
  ANABRANCH_RETURN_IF_ERROR(Barrier(call));
  for (int rank = 0; rank < s.size; ++rank) {
    const Record& record = s.record_of(rank);
    if (record.code == 0) continue;
    return Status(static_cast<StatusCode>(record.code),
                  "rank " + std::to_string(rank) + ": " + record.message);
  }
  if (access == Access::kPeersWrite) move(/*out=*/false);
  return Status::Ok();
}

}  // namespace anabranch
