// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The shared module lib_anabranch_mpi.so: MPI as a few C functions, so that the engine itself needs
// no MPI. Loaded when a program that mpirun has started asks for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/executor.h"
#include "comm/mpi/mpi_exchange.h"
#include "comm/mpi/mpi_group.h"

#define ANABRANCH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// The process's group: MPI can be initialised once a process. Never destroyed but by
// anabranch_mpi_end, because ending MPI waits for the other ranks.
anabranch::MpiGroup* group = nullptr;

void CopyText(const std::string& text, char* to, int64_t size) {
  const int64_t count = std::min<int64_t>(size - 1, static_cast<int64_t>(text.size()));
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

}  // namespace

// Starts MPI: rank, size, and in `text` MPI's name. Returns 0, or 1 with the fault in `text`.
ANABRANCH_EXPORT int anabranch_mpi_start(int64_t* rank, int64_t* size, char* text,
                                         int64_t text_size) {
  std::unique_ptr<anabranch::MpiGroup> made;
  const anabranch::Status status = anabranch::MpiGroup::Create(&made);
  CopyText(status.ok() ? made->library() : status.message(), text, text_size);
  if (!status.ok()) return 1;
  group = made.release();
  *rank = group->rank();
  *size = group->size();
  return 0;
}

// all[r * bytes ...] = what rank r passed as mine. Returns 0, or 1 after a fault.
ANABRANCH_EXPORT int anabranch_mpi_gather(const void* mine, int64_t bytes, void* all) {
  return group != nullptr && group->Gather(mine, bytes, all).ok() ? 0 : 1;
}

// anabranch::TimeExchange on num_threads threads, `rounds` times; form as in ExchangeForm. Returns
// 0, or 1 with the fault in `text`.
ANABRANCH_EXPORT int anabranch_mpi_time_exchange(const anabranch::Exchange* exchange, int32_t form,
                                                 int64_t num_threads, int64_t rounds,
                                                 double* seconds, char* text, int64_t text_size) {
  anabranch::ThreadExecutor executor(static_cast<int>(num_threads));
  for (int64_t round = 0; round < rounds; ++round) {
    const anabranch::Status status =
        group == nullptr ? anabranch::InvalidArgument("mpi: not started")
                         : anabranch::TimeExchange(*exchange, anabranch::ExchangeForm{form}, *group,
                                                   executor, &seconds[round]);
    if (status.ok()) continue;
    CopyText(status.message(), text, text_size);
    return 1;
  }
  return 0;
}

// Ends MPI, with all ranks.
ANABRANCH_EXPORT void anabranch_mpi_end() {
  delete group;
  group = nullptr;
}
