// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_SCRATCH_BLOCK_H_
#define ANABRANCH_BASE_SCRATCH_BLOCK_H_

#include <cstdint>
#include <cstdlib>

#include "base/context.h"
#include "base/executor.h"
#include "base/status.h"

namespace anabranch {

// Owns the scratch of a call: memory aligned to cache lines, never zero-filled.
class ScratchBlock {
 public:
  explicit ScratchBlock(int64_t bytes)
      : data_(bytes == 0 ? nullptr
                         : std::aligned_alloc(kCacheLineBytes, RoundUp(bytes, kCacheLineBytes))),
        bytes_(bytes) {}
  ~ScratchBlock() { std::free(data_); }
  ScratchBlock(const ScratchBlock&) = delete;
  ScratchBlock& operator=(const ScratchBlock&) = delete;

  // kResourceExhausted, naming `op`, when the allocation failed.
  Status status(const char* op) const {
    if (bytes_ == 0 || data_ != nullptr) return Status::Ok();
    return MakeStatus(StatusCode::kResourceExhausted, op, ": no memory for ", bytes_,
                      " bytes of scratch");
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Context context(Executor* executor) const { return Context{executor, data_, bytes_}; }

 private:
  void* data_;
  int64_t bytes_;
};

}  // namespace anabranch

#endif  // ANABRANCH_BASE_SCRATCH_BLOCK_H_
