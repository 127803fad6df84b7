// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// adamw in place, and sum_of_squares, as a share of the copy bandwidth measured in the same
// process.
#include <benchmark/benchmark.h>

#include <vector>

#include "ops/adamw/adamw.h"
#include "ops/adamw/adamw_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

void SetRates(benchmark::State& state, double bytes, Executor* executor) {
  const double copy = tile::MeasureCopyGbPerSecond(executor);
  state.counters["GB/s"] =
      benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["share_of_copy"] =
      benchmark::Counter(bytes * 1e-9 / copy, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["copy_GB/s"] = copy;
}

// Arguments: elements, threads.
void BM_Adamw(benchmark::State& state) {
  const int64_t count = state.range(0);
  ThreadExecutor executor(static_cast<int>(state.range(1)));
  Context context{&executor, nullptr, 0};
  const tile::AdamwScalars scalars = {1, 1e-3f, 0.9f, 0.1f, 0.95f, 0.05f, 1e-8f, 0.1f, 2, 3, 1};
  std::vector<float> gradient(count, 0.5f), parameter(count, 1.0f), m(count), v(count);
  AdamwArgs args;
  args.scalars = ConstTensorView(&scalars.clip_factor, {kAdamwScalars});
  args.gradient = ConstTensorView(gradient.data(), {count});
  args.parameter = ConstTensorView(parameter.data(), {count});
  args.m = ConstTensorView(m.data(), {count});
  args.v = ConstTensorView(v.data(), {count});
  args.new_parameter = TensorView(parameter.data(), {count});
  args.new_m = TensorView(m.data(), {count});
  args.new_v = TensorView(v.data(), {count});
  for (auto _ : state) {
    const Status status = Adamw(args, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  SetRates(state, AdamwBytes(count), &executor);
}
BENCHMARK(BM_Adamw)
    ->ArgNames({"count", "threads"})
    ->Args({int64_t{1} << 23, 2})
    ->Args({int64_t{1} << 26, 2})
    ->Args({int64_t{1} << 26, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// Arguments: elements, threads.
void BM_SumOfSquares(benchmark::State& state) {
  const int64_t count = state.range(0);
  ThreadExecutor executor(static_cast<int>(state.range(1)));
  const std::vector<float> values(count, 0.5f);
  float sum = 0;
  const SumOfSquaresArgs args{ConstTensorView(values.data(), {count}), TensorView(&sum, {1})};
  std::vector<double> scratch(SumOfSquaresScratchBytes(args) / sizeof(double));
  Context context{&executor, scratch.data(), SumOfSquaresScratchBytes(args)};
  for (auto _ : state) {
    const Status status = SumOfSquares(args, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  SetRates(state, SumOfSquaresBytes(count), &executor);
}
BENCHMARK(BM_SumOfSquares)
    ->ArgNames({"count", "threads"})
    ->Args({int64_t{1} << 26, 2})
    ->Args({int64_t{1} << 26, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
