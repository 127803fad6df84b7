// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// muon in place on the experts' matrices, as a share of the bf16 peak measured in the same process.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "ops/muon/muon.h"
#include "ops/muon/muon_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

// Arguments: matrices, rows, columns, threads.
void BM_Muon(benchmark::State& state) {
  const int64_t e = state.range(0), m = state.range(1), n = state.range(2);
  const int threads = static_cast<int>(state.range(3));
  ThreadExecutor executor(threads);
  const MuonScalars scalars = {1, 1e-3f, 0.95f, 0.05f, 1, 0.1f, 1};
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(e * m * n), parameter(e * m * n, 1.0f), moments(e * m * n);
  for (float& value : gradient) value = normal(random);
  MuonArgs args;
  args.scalars = ConstTensorView(&scalars.clip_factor, {kMuonScalars});
  args.gradient = ConstTensorView(gradient.data(), {e, m, n});
  args.parameter = ConstTensorView(parameter.data(), {e, m, n});
  args.m = ConstTensorView(moments.data(), {e, m, n});
  args.new_parameter = TensorView(parameter.data(), {e, m, n});
  args.new_m = TensorView(moments.data(), {e, m, n});
  std::vector<float> scratch(MuonScratchBytes(args, threads) / sizeof(float) + 16);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  const Context context{&executor, scratch.data() + (-address & 63) / sizeof(float),
                        MuonScratchBytes(args, threads)};
  for (auto _ : state) {
    const Status status = Muon(args, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  const double gigaflops = 1e-9 * MuonFlops(e, m, n, args.iterations);
  const double peak = tile::MeasurePeakGflops(DType::kBF16, &executor);
  state.counters["GFLOP/s"] =
      benchmark::Counter(gigaflops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["share_of_peak"] =
      benchmark::Counter(gigaflops / peak, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Muon)
    ->ArgNames({"matrices", "rows", "columns", "threads"})
    ->Args({64, 512, 256, 2})
    ->Args({64, 512, 256, 1})
    ->Args({1, 2048, 2048, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
