// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/processes/shared_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

namespace anabranch {

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

Status SharedMemory::Create(int64_t bytes) {
  descriptor_ = memfd_create("anabranch", MFD_CLOEXEC);
  if (descriptor_ < 0) {
    return MakeStatus(StatusCode::kUnimplemented, "shared memory: ", std::strerror(errno));
  }
  owner_ = true;
  return Grow(bytes);
}

Status SharedMemory::Open(int64_t pid, int descriptor, int64_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  descriptor_ = open(path.c_str(), O_RDWR | O_CLOEXEC);  // NOLINT(*-vararg)
  if (descriptor_ < 0) {
    return MakeStatus(StatusCode::kUnimplemented, "shared memory of process ", pid, ": ",
                      std::strerror(errno));
  }
  return Map(bytes);
}

Status SharedMemory::Grow(int64_t bytes) {
  if (bytes <= bytes_) return Status::Ok();
  if (owner_ && ftruncate(descriptor_, bytes) != 0) {
    return MakeStatus(StatusCode::kResourceExhausted, "shared memory: ", bytes,
                      " bytes: ", std::strerror(errno));
  }
  return Map(bytes);
}

Status SharedMemory::Map(int64_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (at == MAP_FAILED) {
    return MakeStatus(StatusCode::kResourceExhausted, "shared memory: ", bytes,
                      " bytes: ", std::strerror(errno));
  }
  madvise(at, bytes, MADV_HUGEPAGE);  // where the system allows it for shared memory
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = static_cast<char*>(at);
  bytes_ = bytes;
  return Status::Ok();
}

// Not the calls private to a process: the words lie in shared memory.
void FutexWait(std::atomic<uint32_t>* word, uint32_t value, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit = {static_cast<time_t>(seconds.count()),
                          static_cast<long>((timeout - seconds).count())};  // NOLINT(runtime/int)
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, value, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

ProcessWatch::ProcessWatch(int64_t pid)
    : descriptor_(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))) {}

ProcessWatch::~ProcessWatch() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool ProcessWatch::ended() const {
  if (descriptor_ < 0) return false;  // an old kernel: the deadline alone tells
  pollfd look = {descriptor_, POLLIN, 0};
  return poll(&look, 1, 0) > 0;
}

}  // namespace anabranch
