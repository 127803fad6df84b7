// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_POISONED_SCRATCH_H_
#define ANABRANCH_BASE_POISONED_SCRATCH_H_

#include <cstdint>
#include <cstring>

#include "base/executor.h"
#include "base/scratch_block.h"
#include "base/status.h"

namespace anabranch {

// For tests: scratch full of 0xff bytes. f32 and bf16 read before they are written are NaN.
class PoisonedScratch : public ScratchBlock {
 public:
  explicit PoisonedScratch(int64_t bytes) : ScratchBlock(bytes) {
    if (data() != nullptr) std::memset(data(), 0xff, bytes);
  }
};

// Returns run(context) with `threads` workers and exactly `bytes` of poisoned scratch.
template <typename Run>
Status WithPoisonedScratch(int64_t bytes, int threads, const Run& run) {
  ThreadExecutor executor(threads);
  const PoisonedScratch scratch(bytes);
  Context context = scratch.context(&executor);
  return run(context);
}

}  // namespace anabranch

#endif  // ANABRANCH_BASE_POISONED_SCRATCH_H_
