// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_RAGGED_PLAN_FIRST_FAULT_H_
#define ANABRANCH_OPS_RAGGED_PLAN_FIRST_FAULT_H_

#include <atomic>
#include <cstdint>
#include <limits>

namespace anabranch {

// The lowest index at which parallel workers found a fault, so that the error message does not
// depend on their timing. Any thread may report; read it after the loop.
class FirstFault {
 public:
  void Report(int64_t index) {
    int64_t seen = index_.load(std::memory_order_relaxed);
    while (index < seen && !index_.compare_exchange_weak(seen, index, std::memory_order_relaxed)) {
    }
  }
  bool found() const { return index() != kNone; }
  int64_t index() const { return index_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> index_{kNone};
};

}  // namespace anabranch

#endif  // ANABRANCH_OPS_RAGGED_PLAN_FIRST_FAULT_H_
