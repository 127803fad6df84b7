// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_FLOAT_MODE_H_
#define ANABRANCH_BASE_FLOAT_MODE_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace anabranch {

// Sets round-to-nearest with subnormals kept and exceptions masked for the current thread, and
// restores on destruction what it found. XLA:CPU calls us with flush-to-zero and
// denormals-are-zero on, which would turn an E8M0 scale of 2^-127 into 0.
class ScopedIeeeMode {
 public:
#if defined(__x86_64__)
  ScopedIeeeMode() : saved_(_mm_getcsr()) { _mm_setcsr(kIeeeMode); }
  ~ScopedIeeeMode() { _mm_setcsr(saved_); }
#else
  ScopedIeeeMode() = default;
#endif
  ScopedIeeeMode(const ScopedIeeeMode&) = delete;
  ScopedIeeeMode& operator=(const ScopedIeeeMode&) = delete;

#if defined(__x86_64__)

 private:
  static constexpr unsigned kIeeeMode = 0x1f80;  // MXCSR at reset: all exceptions masked
  const unsigned saved_;
#endif
};

}  // namespace anabranch

#endif  // ANABRANCH_BASE_FLOAT_MODE_H_
