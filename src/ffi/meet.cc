// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/meet.h"

#include <cstdlib>

namespace anabranch::ffi {
namespace {

// Long enough for the slowest device of a busy machine, short enough to end a run that lost one.
constexpr double kDefaultTimeoutSeconds = 300;

}  // namespace

std::chrono::milliseconds CommTimeout() {
  const char* text = std::getenv("ANABRANCH_COMM_TIMEOUT_SECONDS");
  const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr);
  return std::chrono::milliseconds(
      static_cast<int64_t>(1000 * (seconds > 0 ? seconds : kDefaultTimeoutSeconds)));
}

MeetingPlace& ProcessMeetingPlace() {
  static MeetingPlace* const place = new MeetingPlace(CommTimeout());
  return *place;
}

}  // namespace anabranch::ffi

// How long a rank waits for the others, in seconds, as the environment says.
extern "C" __attribute__((visibility("default"))) double anabranch_comm_timeout() {
  return static_cast<double>(anabranch::ffi::CommTimeout().count()) / 1000;
}

// How long a rank waits for the others, for meetings that begin from now on.
extern "C" __attribute__((visibility("default"))) void anabranch_set_comm_timeout(double seconds) {
  const std::chrono::milliseconds timeout(static_cast<int64_t>(1000 * seconds));
  anabranch::ffi::ProcessMeetingPlace().set_timeout(timeout);
  anabranch::ffi::SetProcessTimeout(timeout);
}
