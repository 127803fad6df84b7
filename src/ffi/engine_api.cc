// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Facts about the engine and the machine, as plain C functions for ctypes.
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/cpu_features.h"
#include "base/executor.h"
#include "tile/tile.h"
#include "tile/yardstick.h"

#define ANABRANCH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Copies text into a caller's buffer, cut to fit; returns the whole length.
int64_t CopyText(const std::string& text, char* buffer, int64_t size) {
  if (size > 0) {
    const int64_t count = std::min<int64_t>(size - 1, static_cast<int64_t>(text.size()));
    std::memcpy(buffer, text.data(), count);
    buffer[count] = '\0';
  }
  return static_cast<int64_t>(text.size());
}

}  // namespace

// Processors this process may run on.
ANABRANCH_EXPORT int64_t anabranch_num_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

// Name of the kernel table in use.
ANABRANCH_EXPORT int64_t anabranch_isa(char* buffer, int64_t size) {
  return CopyText(anabranch::Name(anabranch::tile::Kernels().isa), buffer, size);
}

// Why ANABRANCH_FORCE_ISA was not obeyed; empty when it was.
ANABRANCH_EXPORT int64_t anabranch_forced_isa_error(char* buffer, int64_t size) {
  return CopyText(anabranch::tile::ForcedIsaError(), buffer, size);
}

// CPU features that matter here, separated by spaces.
ANABRANCH_EXPORT int64_t anabranch_cpu_features(char* buffer, int64_t size) {
  std::string text;
  for (const std::string& name : anabranch::CpuFeatures()) {
    text += (text.empty() ? "" : " ") + name;
  }
  return CopyText(text, buffer, size);
}

// Peak in GFLOP/s on num_threads threads; bf16 != 0 for bf16, else f32.
ANABRANCH_EXPORT double anabranch_measure_peak_gflops(int64_t bf16, int64_t num_threads) {
  anabranch::ThreadExecutor executor(static_cast<int>(num_threads));
  return anabranch::tile::MeasurePeakGflops(
      bf16 != 0 ? anabranch::DType::kBF16 : anabranch::DType::kF32, &executor);
}

// Copy bandwidth, read plus write, in GB/s on num_threads threads.
ANABRANCH_EXPORT double anabranch_measure_copy_gb_per_s(int64_t num_threads) {
  anabranch::ThreadExecutor executor(static_cast<int>(num_threads));
  return anabranch::tile::MeasureCopyGbPerSecond(&executor);
}

// The same past the caches.
ANABRANCH_EXPORT double anabranch_measure_stream_gb_per_s(int64_t num_threads) {
  anabranch::ThreadExecutor executor(static_cast<int>(num_threads));
  return anabranch::tile::MeasureStreamGbPerSecond(&executor);
}

// anabranch::tile::TimeStreamCopy on num_threads threads.
ANABRANCH_EXPORT double anabranch_time_stream_copy(const void* from, void* to, int64_t bytes,
                                                   int64_t num_threads) {
  anabranch::ThreadExecutor executor(static_cast<int>(num_threads));
  return anabranch::tile::TimeStreamCopy(from, to, bytes, &executor);
}

// anabranch::tile::TimeTileProduct on num_threads threads.
ANABRANCH_EXPORT void anabranch_time_tile_product(const void* a, const void* b, float* out,
                                                  int64_t m, int64_t n, int64_t k, int64_t bf16,
                                                  int64_t num_threads, int64_t rounds,
                                                  double* seconds) {
  anabranch::ThreadExecutor executor(static_cast<int>(num_threads));
  anabranch::tile::TimeTileProduct(a, b, out, m, n, k,
                                   bf16 != 0 ? anabranch::DType::kBF16 : anabranch::DType::kF32,
                                   &executor, static_cast<int>(rounds), seconds);
}

// anabranch::tile::TimeCodedPacking of E4M3 codes [k, n] with E8M0 scales [ceil(k / 32), n].
ANABRANCH_EXPORT void anabranch_time_mxfp8_packing(const void* codes, const void* scale, int64_t k,
                                                   int64_t n, uint32_t* panels, int64_t rounds,
                                                   double* seconds) {
  anabranch::tile::CodedMatrix matrix;
  matrix.codes = static_cast<const uint8_t*>(codes);
  matrix.pitch = n;
  matrix.scale = scale;
  matrix.scale_pitch = n;
  matrix.block_rows = 32;
  matrix.block_columns = 1;
  anabranch::tile::TimeCodedPacking(matrix, k, n, panels, static_cast<int>(rounds), seconds);
}
