// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The shared module lib_anabranch_mpi.so: MPI as three C functions, so that the engine itself needs
// no MPI. Loaded when a program that mpirun has started asks for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

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

// Ends MPI, with all ranks.
ANABRANCH_EXPORT void anabranch_mpi_end() {
  delete group;
  group = nullptr;
}
