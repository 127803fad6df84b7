// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <cstdlib>
#include <string_view>

namespace anabranch {

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

bool IsSupported(Isa isa) {
  if (isa == Isa::kGeneric) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (isa == Isa::kAvx2) return avx2;
  if (isa == Isa::kAvx512) return avx512;
  return avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

Isa SelectIsa(std::string* error) {
  Isa best = Isa::kGeneric;
  for (int i = 0; i < kNumIsas; ++i) {
    if (IsSupported(static_cast<Isa>(i))) best = static_cast<Isa>(i);
  }
  const char* forced = std::getenv("ANABRANCH_FORCE_ISA");
  if (forced == nullptr || *forced == '\0') return best;
  for (int i = 0; i < kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (std::string_view(forced) != Name(isa)) continue;
    if (IsSupported(isa)) return isa;
    if (error != nullptr) {
      *error = std::string("ANABRANCH_FORCE_ISA=") + forced + ": this CPU does not support it";
    }
    return best;
  }
  if (error != nullptr) {
    *error = std::string("ANABRANCH_FORCE_ISA=") + forced +
             ": unknown; must be generic, avx2, avx512 or avx512_bf16";
  }
  return best;
}

std::vector<std::string> CpuFeatures() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) names.emplace_back("sse4_2");
  if (__builtin_cpu_supports("avx")) names.emplace_back("avx");
  if (__builtin_cpu_supports("avx2")) names.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) names.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) names.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) names.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512vl")) names.emplace_back("avx512vl");
  if (__builtin_cpu_supports("avx512dq")) names.emplace_back("avx512dq");
  if (__builtin_cpu_supports("avx512bf16")) names.emplace_back("avx512_bf16");
#endif
  return names;
}

}  // namespace anabranch
