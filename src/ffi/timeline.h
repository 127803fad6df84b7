// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_FFI_TIMELINE_H_
#define ANABRANCH_FFI_TIMELINE_H_

#include <cstdint>

// What this process's ranks and experts do and when, for time lines: recorded while Python wants it
// (anabranch_timeline_start), at the cost of one load otherwise.
namespace anabranch::ffi {

enum class Track : int32_t { kExchange, kProducts };

// Records the time from its making to its end. The name is static; number tells spans of one name
// apart.
class ScopedSpan {
 public:
  ScopedSpan(Track track, const char* name, int64_t number);
  ~ScopedSpan();
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

 private:
  Track track_;
  const char* name_;
  int64_t number_;
  int64_t begin_;  // 0: not recorded
};

}  // namespace anabranch::ffi

#endif  // ANABRANCH_FFI_TIMELINE_H_
