// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_STATUS_H_
#define ANABRANCH_BASE_STATUS_H_

#include <sstream>
#include <string>
#include <utility>

namespace anabranch {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,    // the caller's arguments break a stated rule
  kOutOfRange,         // a value inside an argument (an expert id, a label) breaks a stated rule
  kResourceExhausted,  // a buffer or capacity is too small; the message gives needed and given
  kUnimplemented,      // this combination of types or this machine is not served
  kDeadlineExceeded,   // a peer did not arrive within the configured time
  kInternal,           // a fault of this library
};

// The result of every public operation. A message names op, argument, value and rule, for example
//   grouped_gemm: group_sizes[3]=-5 is negative; group sizes must be >= 0
// Value type; thread-compatible. An OK status allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Builds a status from streamable parts: MakeStatus(code, "op: x=", x, " must be > 0").
template <typename... Parts>
Status MakeStatus(StatusCode code, const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return Status(code, out.str());
}

template <typename... Parts>
Status InvalidArgument(const Parts&... parts) {
  return MakeStatus(StatusCode::kInvalidArgument, parts...);
}

template <typename... Parts>
Status OutOfRange(const Parts&... parts) {
  return MakeStatus(StatusCode::kOutOfRange, parts...);
}

}  // namespace anabranch

#define ANABRANCH_RETURN_IF_ERROR(expression)              \
  do {                                                     \
    ::anabranch::Status anabranch_status_ = (expression);  \
    if (!anabranch_status_.ok()) return anabranch_status_; \
  } while (false)

#endif  // ANABRANCH_BASE_STATUS_H_
