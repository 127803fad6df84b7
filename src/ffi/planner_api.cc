// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The planner as a plain C function for ctypes.
#include <cstdint>
#include <string>

#include "sim/planner/planner.h"

// Simulates one step of `request` (the text form of sim/planner/request.h) and hands the answer's
// JSON, or the error's message, to `sink` once. Returns 0, or 1 for an error.
extern "C" __attribute__((visibility("default"))) int64_t anabranch_simulate(
    const char* request, int64_t size, void (*sink)(const char* text, int64_t size)) {
  anabranch::sim::Request parsed;
  anabranch::sim::Answer answer;
  anabranch::Status status =
      anabranch::sim::ParseRequest(std::string_view(request, static_cast<size_t>(size)), &parsed);
  if (status.ok()) status = anabranch::sim::Simulate(parsed, &answer);
  const std::string text = status.ok() ? anabranch::sim::ToJson(parsed, answer) : status.message();
  sink(text.data(), static_cast<int64_t>(text.size()));
  return status.ok() ? 0 : 1;
}
