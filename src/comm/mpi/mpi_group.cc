// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_group.h"

#include <mpi.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

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

Status MpiGroup::Gather(const void* mine, int64_t bytes, void* all) {
  int code = MPI_SUCCESS;
  state_->mpi.Run([&] {
    const int count = static_cast<int>(bytes);
    code = MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, state_->comm);
  });
  if (code == MPI_SUCCESS) return Status::Ok();
  return MakeStatus(StatusCode::kInternal, "mpi: MPI_Allgather failed with code ", code);
}

}  // namespace anabranch
