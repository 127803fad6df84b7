// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_PROCESSES_SHARED_MEMORY_H_
#define ANABRANCH_COMM_PROCESSES_SHARED_MEMORY_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/status.h"

namespace anabranch {

// Memory that other processes of this host can map. It has no name anywhere: when its processes
// end, however they end, nothing of it is left. It grows and never shrinks, and begins at a page.
// Not thread-safe.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Makes memory of this process, all zeros.
  Status Create(int64_t bytes);
  // Maps memory that process `pid` created and knows as `descriptor`. kUnimplemented when the
  // process is not on this host or its memory cannot be opened.
  Status Open(int64_t pid, int descriptor, int64_t bytes);
  // Makes room for at least `bytes`: the owner's file grows, or, on the others' side, the mapping
  // of a file that has grown. The address may change, the contents stay.
  Status Grow(int64_t bytes);

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }

 private:
  Status Map(int64_t bytes);

  int descriptor_ = -1;
  bool owner_ = false;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Waits until the word is no longer `value`, at most `timeout`; may return early. The word may lie
// in shared memory.
void FutexWait(std::atomic<uint32_t>* word, uint32_t value, std::chrono::nanoseconds timeout);
void FutexWakeAll(std::atomic<uint32_t>* word);

// Tells whether a process of this host still runs, also when its number is used again or nobody has
// collected it.
class ProcessWatch {
 public:
  explicit ProcessWatch(int64_t pid);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool ended() const;

 private:
  int descriptor_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_PROCESSES_SHARED_MEMORY_H_
