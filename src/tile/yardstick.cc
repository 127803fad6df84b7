// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/yardstick.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "base/context.h"
#include "tile/tile.h"

namespace anabranch::tile {
namespace {

constexpr int kRounds = 8;

double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The shortest of kRounds runs.
template <typename Run>
double BestSeconds(const Run& run) {
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const double start = Seconds();
    run();
    best = std::min(best, Seconds() - start);
  }
  return best;
}

}  // namespace

double MeasurePeakGflops(DType dtype, Executor* executor) {
  const KernelTable& kernels = Kernels();
  const auto spin = dtype == DType::kBF16 ? kernels.spin_bf16 : kernels.spin_f32;
  alignas(kCacheLineBytes) float calibration[16] = {};
  // About 12 ms a round: long against the start of the helpers, short against a time slice.
  constexpr int64_t kProbe = 20000;
  const double probe = BestSeconds([&] { spin(kProbe, calibration); });
  const auto iterations = static_cast<int64_t>(kProbe * std::max(1.0, 0.012 / probe));
  const int workers = executor->num_workers();
  double flops = 0;
  const double best = BestSeconds([&] {
    executor->ParallelFor(workers, [&](int64_t unit, int) {
      alignas(kCacheLineBytes) float sink[16] = {};
      const double done = spin(iterations, sink);
      if (unit == 0) flops = done;
    });
  });
  return flops * workers / best * 1e-9;
}

double MeasureCopyGbPerSecond(Executor* executor) {
  // 2 x 128 MiB: several times any last-level cache share.
  constexpr int64_t kBytes = int64_t{128} << 20;
  constexpr int64_t kPieces = 64;
  const std::unique_ptr<char[]> from(new (std::nothrow) char[kBytes]);
  const std::unique_ptr<char[]> to(new (std::nothrow) char[kBytes]);
  if (from == nullptr || to == nullptr) return 0;
  std::memset(from.get(), 1, kBytes);
  std::memset(to.get(), 2, kBytes);
  const double best = BestSeconds([&] {
    executor->ParallelFor(kPieces, [&](int64_t piece, int) {
      const int64_t offset = piece * (kBytes / kPieces);
      std::memcpy(to.get() + offset, from.get() + offset, kBytes / kPieces);
    });
  });
  return 2.0 * kBytes / best * 1e-9;
}

}  // namespace anabranch::tile
