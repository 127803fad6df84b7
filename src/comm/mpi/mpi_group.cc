// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_group.h"

#include <mpi.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace anabranch {
namespace {

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

}  // namespace

struct MpiGroup::State {
  MpiThread mpi;
  MPI_Comm comm = MPI_COMM_NULL;
  bool began_mpi = false;
  int rank = 0;
  int size = 1;
  std::string library;

  Status Start();
};

Status MpiGroup::State::Start() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  int level = MPI_THREAD_SINGLE;
  if (initialized != 0) {
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) {
      return MakeStatus(StatusCode::kUnimplemented,
                        "mpi: MPI was initialised without MPI_THREAD_MULTIPLE");
    }
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    began_mpi = true;
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  library.assign(text, length);
  library.resize(std::min(library.find_first_of(",\n"), library.size()));
  return Status::Ok();
}

MpiGroup::MpiGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}

MpiGroup::~MpiGroup() {
  State& s = *state_;
  s.mpi.Run([&s] {
    if (s.comm != MPI_COMM_NULL) MPI_Comm_free(&s.comm);
    if (s.began_mpi) MPI_Finalize();
  });
}

int MpiGroup::rank() const { return state_->rank; }
int MpiGroup::size() const { return state_->size; }
const std::string& MpiGroup::library() const { return state_->library; }

Status MpiGroup::Create(std::unique_ptr<MpiGroup>* group) {
  auto state = std::make_unique<State>();
  Status status;
  state->mpi.Run([&] { status = state->Start(); });
  if (status.ok()) group->reset(new MpiGroup(std::move(state)));
  return status;
}

namespace {

// Counts and places, in bytes, of pieces that follow each other. False when an int cannot count
// them.
bool Place(const int32_t* rows, int64_t row_bytes, std::vector<int>* counts,
           std::vector<int>* places) {
  int64_t end = 0;
  for (size_t rank = 0; rank < counts->size(); ++rank) {
    (*places)[rank] = static_cast<int>(end);
    (*counts)[rank] = static_cast<int>(rows[rank] * row_bytes);
    end += rows[rank] * row_bytes;
    if (end > std::numeric_limits<int>::max()) return false;
  }
  return true;
}

Status Outcome(const char* function, int code) {
  if (code == MPI_SUCCESS) return Status::Ok();
  return MakeStatus(StatusCode::kInternal, "mpi: ", function, " failed with code ", code);
}

}  // namespace

Status MpiGroup::AllToAll(const void* send, const int32_t* send_rows, void* receive,
                          const int32_t* receive_rows, int64_t row_bytes) {
  std::vector<int> counts(size()), places(size()), theirs(size()), their_places(size());
  if (!Place(send_rows, row_bytes, &counts, &places) ||
      !Place(receive_rows, row_bytes, &theirs, &their_places)) {
    return MakeStatus(StatusCode::kUnimplemented, "mpi: MPI_Alltoallv of more than 2 GiB");
  }
  int code = MPI_SUCCESS;
  state_->mpi.Run([&] {
    code = MPI_Alltoallv(send, counts.data(), places.data(), MPI_BYTE, receive, theirs.data(),
                         their_places.data(), MPI_BYTE, state_->comm);
  });
  return Outcome("MPI_Alltoallv", code);
}

Status MpiGroup::Barrier() {
  int code = MPI_SUCCESS;
  state_->mpi.Run([&] { code = MPI_Barrier(state_->comm); });
  return Outcome("MPI_Barrier", code);
}

Status MpiGroup::Gather(const void* mine, int64_t bytes, void* all) {
  int code = MPI_SUCCESS;
  state_->mpi.Run([&] {
    const int count = static_cast<int>(bytes);
    code = MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, state_->comm);
  });
  return Outcome("MPI_Allgather", code);
}

}  // namespace anabranch
