// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/timeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

namespace anabranch::ffi {
namespace {

// As Python reads it. Times are of a clock that the processes of a host share.
struct Span {
  char name[48];
  int64_t track;
  int64_t number;
  int64_t begin_ns;
  int64_t end_ns;
};

std::atomic<bool> recording = false;
// Never destroyed: calls may be under way when the process ends.
struct Spans {
  std::mutex mutex;
  std::vector<Span> all;
};
Spans& Recorded() {
  static Spans* const spans = new Spans;
  return *spans;
}

int64_t Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

ScopedSpan::ScopedSpan(Track track, const char* name, int64_t number)
    : track_(track), name_(name), number_(number), begin_(recording.load() ? Now() : 0) {}

ScopedSpan::~ScopedSpan() {
  if (begin_ == 0 || !recording.load()) return;
  Span span = {{}, static_cast<int64_t>(track_), number_, begin_, Now()};
  std::strncpy(span.name, name_, sizeof(span.name) - 1);
  Spans& spans = Recorded();
  const std::lock_guard<std::mutex> lock(spans.mutex);
  spans.all.push_back(span);
}

}  // namespace anabranch::ffi

#define ANABRANCH_EXPORT extern "C" __attribute__((visibility("default")))

using anabranch::ffi::Recorded;
using anabranch::ffi::Span;

// Forgets all spans and records from now on.
ANABRANCH_EXPORT void anabranch_timeline_start() {
  const std::lock_guard<std::mutex> lock(Recorded().mutex);
  Recorded().all.clear();
  anabranch::ffi::recording = true;
}

// Records no more. Copies the first `room` spans and returns how many there are.
ANABRANCH_EXPORT int64_t anabranch_timeline_stop(void* spans, int64_t room) {
  anabranch::ffi::recording = false;
  const std::lock_guard<std::mutex> lock(Recorded().mutex);
  const auto& all = Recorded().all;
  const int64_t count = std::min(room, static_cast<int64_t>(all.size()));
  if (count > 0) std::memcpy(spans, all.data(), count * sizeof(Span));
  return static_cast<int64_t>(all.size());
}
