// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_CONTEXT_H_
#define ANABRANCH_BASE_CONTEXT_H_

#include <cstddef>
#include <cstdint>

#include "base/executor.h"

namespace anabranch {

// What an operation needs besides its arguments. scratch is caller-owned memory of at least
// <Op>ScratchBytes(...) bytes, aligned to 64; its contents before and after a call are undefined.
struct Context {
  Executor* executor = nullptr;
  void* scratch = nullptr;
  int64_t scratch_bytes = 0;
};

inline constexpr int64_t kCacheLineBytes = 64;

constexpr int64_t CeilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t RoundUp(int64_t value, int64_t to) { return CeilDiv(value, to) * to; }

// Hands out cache-line aligned pieces of a scratch block. With a null block it only counts, so one
// function both sizes and lays out an operation's scratch.
class ScratchArena {
 public:
  explicit ScratchArena(void* block) : block_(static_cast<std::byte*>(block)) {}

  template <typename T>
  T* Take(int64_t count) {
    const int64_t offset = used_bytes_;
    used_bytes_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), kCacheLineBytes);
    return block_ == nullptr ? nullptr : reinterpret_cast<T*>(block_ + offset);
  }
  int64_t used_bytes() const { return used_bytes_; }

 private:
  std::byte* block_;
  int64_t used_bytes_ = 0;
};

}  // namespace anabranch

#endif  // ANABRANCH_BASE_CONTEXT_H_
