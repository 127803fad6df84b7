// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_BASE_CPU_FEATURES_H_
#define ANABRANCH_BASE_CPU_FEATURES_H_

#include <string>
#include <vector>

namespace anabranch {

// The instruction sets that have a kernel table, worst first.
enum class Isa { kGeneric = 0, kAvx2, kAvx512, kAvx512Bf16 };
inline constexpr int kNumIsas = 4;

// "generic", "avx2", "avx512", "avx512_bf16": the spelling of ANABRANCH_FORCE_ISA.
const char* Name(Isa isa);

// Whether this CPU (and operating system) can run the table.
bool IsSupported(Isa isa);

// The best supported table, or the one that ANABRANCH_FORCE_ISA names. An unknown or unsupported
// name is not obeyed: *error then says why, and the best supported table is returned. The
// environment is read on every call; callers that need one answer per process keep it.
Isa SelectIsa(std::string* error);

// Names of the features that matter here, as in /proc/cpuinfo, for reports.
std::vector<std::string> CpuFeatures();

}  // namespace anabranch

#endif  // ANABRANCH_BASE_CPU_FEATURES_H_
