// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// rms_norm with its residual addition, forward and gradient, as a share of the copy bandwidth
// measured in the same process.
#include <benchmark/benchmark.h>

#include <vector>

#include "ops/rms_norm/rms_norm.h"
#include "ops/rms_norm/rms_norm_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

// Arguments: rows, columns, threads.
void BM_RmsNorm(benchmark::State& state) {
  const int64_t rows = state.range(0), columns = state.range(1);
  ThreadExecutor executor(static_cast<int>(state.range(2)));
  std::vector<float> x(rows * columns, 0.5f), sum(x), x_grad(x), weight(columns, 1.0f);
  std::vector<float> weight_grad(columns), inverse(rows);
  std::vector<BF16> branch(rows * columns, ToBF16(0.25f)), y(branch), branch_grad(branch);
  const TensorView summed(sum.data(), {rows, columns});
  const RmsNormArgs args{1e-6f,
                         {x.data(), {rows, columns}},
                         {branch.data(), {rows, columns}},
                         {weight.data(), {columns}},
                         summed,
                         {y.data(), {rows, columns}},
                         {inverse.data(), {rows}}};
  const RmsNormGradArgs grad{summed,
                             {weight.data(), {columns}},
                             {inverse.data(), {rows}},
                             {branch.data(), {rows, columns}},
                             {x.data(), {rows, columns}},
                             {x_grad.data(), {rows, columns}},
                             {branch_grad.data(), {rows, columns}},
                             {weight_grad.data(), {columns}},
                             8};
  std::vector<float> scratch(RmsNormGradScratchBytes(grad) / sizeof(float));
  Context context{&executor, scratch.data(), RmsNormGradScratchBytes(grad)};
  for (auto _ : state) {
    Status status = RmsNorm(args, context);
    if (status.ok()) status = RmsNormGrad(grad, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  const double gigabytes = 1e-9 * (RmsNormBytes(rows, columns, DType::kF32, DType::kBF16) +
                                   RmsNormGradBytes(rows, columns, DType::kF32, DType::kBF16));
  const double copy = tile::MeasureCopyGbPerSecond(&executor);
  state.counters["GB/s"] =
      benchmark::Counter(gigabytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["share_of_copy"] =
      benchmark::Counter(gigabytes / copy, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_RmsNorm)
    ->ArgNames({"rows", "columns", "threads"})
    ->Args({2048, 512, 2})
    ->Args({2048, 512, 1})
    ->Args({8192, 4096, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
