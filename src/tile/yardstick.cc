// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/yardstick.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "base/context.h"
#include "base/float_mode.h"
#include "base/stream_copy.h"
#include "tile/block.h"
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

// In pieces that workers take one after the other.
void CopyInPieces(CopyRow copy, const char* from, char* to, int64_t bytes, Executor* executor) {
  constexpr int64_t kPieceBytes = int64_t{2} << 20;
  executor->ParallelFor(CeilDiv(bytes, kPieceBytes), [&](int64_t piece, int) {
    const int64_t offset = piece * kPieceBytes;
    copy(to + offset, from + offset, std::min(kPieceBytes, bytes - offset));
    StreamFence();
  });
}

double CopyGbPerSecond(CopyRow copy, Executor* executor) {
  // 2 x 128 MiB: several times any last-level cache share.
  constexpr int64_t kBytes = int64_t{128} << 20;
  const std::unique_ptr<char[]> from(new (std::nothrow) char[kBytes]);
  const std::unique_ptr<char[]> to(new (std::nothrow) char[kBytes]);
  if (from == nullptr || to == nullptr) return 0;
  std::memset(from.get(), 1, kBytes);
  std::memset(to.get(), 2, kBytes);
  const double best =
      BestSeconds([&] { CopyInPieces(copy, from.get(), to.get(), kBytes, executor); });
  return 2.0 * kBytes / best * 1e-9;
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

double MeasureCopyGbPerSecond(Executor* executor) { return CopyGbPerSecond(CopyCached, executor); }

double MeasureStreamGbPerSecond(Executor* executor) {
  return CopyGbPerSecond(CopyStreaming, executor);
}

double TimeStreamCopy(const void* from, void* to, int64_t bytes, Executor* executor) {
  const double start = Seconds();
  CopyInPieces(CopyStreaming, static_cast<const char*>(from), static_cast<char*>(to), bytes,
               executor);
  return Seconds() - start;
}

void TimeTileProduct(const void* a, const void* b, float* out, int64_t m, int64_t n, int64_t k,
                     DType dtype, Executor* executor, int rounds, double* seconds) {
  const KernelTable& kernels = Kernels();
  const int64_t words = WordsOf(dtype, k), panels = CeilDiv(n, kPanelColumns);
  const auto rows_of = [&](const void* matrix, int64_t rows, int64_t columns) {
    std::vector<const void*> pointers(rows);
    for (int64_t r = 0; r < rows; ++r) {
      pointers[r] = static_cast<const char*>(matrix) + r * columns * SizeOf(dtype);
    }
    return pointers;
  };
  const std::vector<const void*> a_rows = rows_of(a, m, k), b_rows = rows_of(b, k, n);
  std::vector<uint32_t> packed(panels * words * kPanelColumns);
  const auto columns_of = [&](int64_t panel) {
    return static_cast<int>(std::min<int64_t>(kPanelColumns, n - panel * kPanelColumns));
  };
  for (int64_t panel = 0; panel < panels; ++panel) {
    kernels.pack(dtype, dtype)
        .rows(b_rows.data(), k, panel * kPanelColumns, columns_of(panel), kPanelColumns,
              packed.data() + panel * words * kPanelColumns);
  }
  for (int round = 0; round < rounds; ++round) {
    const double start = Seconds();
    executor->ParallelFor(panels, [&](int64_t panel, int) {
      for (int64_t index = 0; index < NumRowTiles(m); ++index) {
        const RowTile at = RowTileAt(m, index);
        kernels.product(dtype)(a_rows.data() + at.first, at.rows, words,
                               packed.data() + panel * words * kPanelColumns, columns_of(panel),
                               out + at.first * n + panel * kPanelColumns, n, Store::kWrite);
      }
    });
    seconds[round] = Seconds() - start;
  }
}

void TimeCodedPacking(const CodedMatrix& matrix, int64_t k, int64_t n, uint32_t* panels, int rounds,
                      double* seconds) {
  const ScopedIeeeMode mode;
  const Isa isa = Kernels().isa;
  const int64_t panel_words = WordsOf(DType::kBF16, k) * kPanelColumns;
  for (int round = 0; round < rounds; ++round) {
    const double start = Seconds();
    for (int64_t column = 0; column < n; column += kPanelColumns) {
      PackCodedRows(isa, matrix, {0, k, column, std::min<int64_t>(kPanelColumns, n - column)},
                    panels + column / kPanelColumns * panel_words);
    }
    seconds[round] = Seconds() - start;
  }
}

}  // namespace anabranch::tile
