// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The analysis of HLO text as a plain C function for ctypes.
#include <cstdint>
#include <string>
#include <string_view>

#include "sim/hlo_step/analysis.h"

namespace {

using anabranch::Status;
using anabranch::sim::Request;

// Order of anabranch_analyze_hlo's `options`, as in python/anabranch/planner/hlo.py.
anabranch::sim::hlo::AnalysisOptions MakeOptions(const int64_t* options, const Request& request) {
  anabranch::sim::hlo::AnalysisOptions result;
  result.num_devices = options[0];
  result.reschedule = options[1] != 0;
  result.default_times = options[2] != 0;
  result.scale_up_resource = options[3] != 0;
  result.scheduler.limits[0] = options[4];
  result.scheduler.limits[1] = options[5];
  result.scheduler.limits[2] = options[6];
  result.timeline.multi_stream = options[7] != 0;
  // On one stream collectives cannot deadlock, and XLA then leaves the rule out.
  result.scheduler.forbid_shared_devices = result.timeline.multi_stream;
  result.timeline.overlap = options[8] != 0;
  const anabranch::sim::Hardware& hardware = request.hardware;
  if (hardware.sms > 0) {
    result.timeline.collective_sm_share =
        static_cast<double>(hardware.collective_sms) / static_cast<double>(hardware.sms);
  }
  return result;
}

}  // namespace

// Analyses HLO `text` on the hardware of `request` (the text form of sim/planner/request.h) and
// hands to `sink` once: output 0 the JSON, 1 the JSON with every event, 2 the profile, or the
// error's message. Returns 0, or 1 for an error.
extern "C" __attribute__((visibility("default"))) int64_t anabranch_analyze_hlo(
    const char* text, int64_t size, const char* request, int64_t request_size,
    const int64_t* options, int64_t output, void (*sink)(const char* text, int64_t size)) {
  Request parsed;
  anabranch::sim::hlo::Analysis analysis;
  Status status = anabranch::sim::ParseRequest(
      std::string_view(request, static_cast<size_t>(request_size)), &parsed);
  if (status.ok()) {
    status = AnalyzeHlo(std::string_view(text, static_cast<size_t>(size)), parsed.hardware,
                        MakeOptions(options, parsed), &analysis);
  }
  std::string result = status.message();
  if (status.ok()) {
    result = output == 2 ? ToProfile(analysis) : ToJson(analysis, output == 1);
  }
  sink(result.data(), static_cast<int64_t>(result.size()));
  return status.ok() ? 0 : 1;
}
