// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Quantisation in elements per second, on one thread and two, from memory and from the cache.
#include <benchmark/benchmark.h>

#include <bit>
#include <vector>

#include "ops/quantize/problem.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

using quantize::Problem;

// Arguments: format, axis, rows (of 2048 columns), threads.
Problem MakeProblem(const benchmark::State& state) {
  QuantizeOptions options;
  options.format = static_cast<QuantizedFormat>(state.range(0));
  options.axis = static_cast<int>(state.range(1));
  Problem problem(options, state.range(2), 2048);
  problem.Fill(1);
  return problem;
}

template <typename Args>
void Measure(benchmark::State& state, Status (*op)(const Args&, const Context&),
             int64_t (*bytes)(const Args&), const Args& args, double moved, int64_t elements) {
  ThreadExecutor executor(static_cast<int>(state.range(3)));
  std::vector<std::byte> scratch(bytes(args));
  const Context context = {&executor, scratch.data(), static_cast<int64_t>(scratch.size())};
  for (auto _ : state) {
    const Status status = op(args, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  const double copy = tile::MeasureCopyGbPerSecond(&executor);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["Gelements/s"] = benchmark::Counter(static_cast<double>(elements) * 1e-9, rate);
  state.counters["share_of_copy"] = benchmark::Counter(moved * 1e-9 / copy, rate);
  state.counters["copy_GB/s"] = copy;
}

void BM_Quantize(benchmark::State& state) {
  Problem p = MakeProblem(state);
  const auto elements = static_cast<int64_t>(p.x.size());
  Measure<QuantizeArgs>(state, Quantize, QuantizeScratchBytes, p.Args(),
                        QuantizeBytes(p.options.format, elements, 4), elements);
}

void BM_QuantizeDequantize(benchmark::State& state) {
  Problem p = MakeProblem(state);
  const auto elements = static_cast<int64_t>(p.x.size());
  std::vector<BF16> out(p.x.size());
  QuantizeDequantizeArgs args = p.RoundTripArgs();
  args.statistics = {};
  args.out = TensorView(out.data(), {p.rows, p.columns});
  Measure<QuantizeDequantizeArgs>(state, QuantizeDequantize, QuantizeDequantizeScratchBytes, args,
                                  6.0 * static_cast<double>(elements), elements);
}

// What a training step does with rows: bf16 to bf16, and the statistics.
void BM_QuantizeDequantizeCounted(benchmark::State& state) {
  Problem p = MakeProblem(state);
  const auto elements = static_cast<int64_t>(p.x.size());
  std::vector<BF16> x(p.x.size()), out(p.x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(p.x[i]) >> 16);
  }
  QuantizeDequantizeArgs args = p.RoundTripArgs();
  args.x = ConstTensorView(x.data(), {p.rows, p.columns});
  args.out = TensorView(out.data(), {p.rows, p.columns});
  Measure<QuantizeDequantizeArgs>(state, QuantizeDequantize, QuantizeDequantizeScratchBytes, args,
                                  4.0 * static_cast<double>(elements), elements);
}

void BM_Dequantize(benchmark::State& state) {
  Problem p = MakeProblem(state);
  const auto elements = static_cast<int64_t>(p.x.size());
  std::vector<BF16> out(p.x.size());
  DequantizeArgs args = p.BackArgs();
  args.out = TensorView(out.data(), {p.rows, p.columns});
  std::vector<std::byte> scratch(QuantizeScratchBytes(p.Args()));
  SerialExecutor serial;
  const Context context = {&serial, scratch.data(), static_cast<int64_t>(scratch.size())};
  if (!Quantize(p.Args(), context).ok()) state.SkipWithError("quantize failed");
  const double moved =
      QuantizedBytes(p.options.format, elements) + 2.0 * static_cast<double>(elements);
  Measure<DequantizeArgs>(state, Dequantize, DequantizeScratchBytes, args, moved, elements);
}

void Arguments(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"format", "axis", "rows", "threads"})->UseRealTime();
  for (int format : {0, 3, 5}) {
    for (int axis : {1, 0}) bench->Args({format, axis, 128, 1});
  }
  bench->Args({0, 1, 8192, 1})->Args({0, 1, 8192, 2});
}
BENCHMARK(BM_Quantize)->Apply(Arguments);
BENCHMARK(BM_QuantizeDequantize)->Apply(Arguments);
BENCHMARK(BM_QuantizeDequantizeCounted)->Apply(Arguments);
BENCHMARK(BM_Dequantize)->Apply(Arguments);

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
