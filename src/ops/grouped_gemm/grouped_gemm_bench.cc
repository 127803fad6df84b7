// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The three grouped products as a share of the multiply-add peak measured in the same process.
// Weights are plain [E, K, N] arrays and are packed inside the timed call. A sample of every result
// is checked against sums in double before it is timed.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/executor.h"
#include "ops/grouped_gemm/grouped_gemm.h"
#include "ops/grouped_gemm/grouped_gemm_cost.h"
#include "tile/tile.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

struct Free {
  void operator()(void* block) const { std::free(block); }
};

struct Array {
  Array(DType type, int64_t count)
      : dtype(type),
        data(std::aligned_alloc(kCacheLineBytes, RoundUp(count * SizeOf(type), kCacheLineBytes))) {}

  void Fill(int64_t count, unsigned seed) {
    // Rows of 4,096 distinct values, shifted by one element each time: quick to make.
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    float some[4096];
    for (float& value : some) value = normal(random);
    for (int64_t i = 0; i < count; ++i) Set(i, some[(i + i / 4096) % 4096]);
  }
  void Set(int64_t i, float value) {
    if (dtype == DType::kBF16) {
      static_cast<BF16*>(data.get())[i] = ToBF16(value);
    } else {
      static_cast<float*>(data.get())[i] = value;
    }
  }
  double operator[](int64_t i) const {
    return dtype == DType::kBF16 ? ToFloat(static_cast<const BF16*>(data.get())[i])
                                 : static_cast<const float*>(data.get())[i];
  }

  DType dtype;
  std::unique_ptr<void, Free> data;
};

enum Product { kForward, kDgrad, kWgrad };

// Rows are drawn so that groups are uneven: sizes between a half and one and a half of the mean.
std::vector<int32_t> DrawSizes(int64_t num_rows, int64_t num_groups) {
  std::mt19937 random(7);
  std::vector<double> share(num_groups);
  double sum = 0;
  for (double& s : share) sum += s = std::uniform_real_distribution<>(0.5, 1.5)(random);
  std::vector<int32_t> sizes(num_groups);
  int64_t left = num_rows;
  for (int64_t g = 0; g < num_groups; ++g) {
    sizes[g] = static_cast<int32_t>(std::min<int64_t>(left, num_rows * share[g] / sum));
    left -= sizes[g];
  }
  sizes[0] += static_cast<int32_t>(left);
  return sizes;
}

struct Bench {
  Bench(Product which, DType type, int64_t rows, int64_t groups, int64_t k_size, int64_t n_size)
      : product(which),
        num_rows(rows),
        k(k_size),
        n(n_size),
        sizes(DrawSizes(rows, groups)),
        x(which == kDgrad ? DType::kF32 : type, rows * k_size),
        y(which == kForward ? DType::kF32 : type, rows * n_size),
        w(which == kWgrad ? DType::kF32 : type, groups * k_size * n_size) {
    x.Fill(rows * k, 1);
    y.Fill(rows * n, 2);
    w.Fill(groups * k * n, 3);
  }

  int64_t num_groups() const { return static_cast<int64_t>(sizes.size()); }
  TensorView X() const { return {x.data.get(), x.dtype, {num_rows, k}}; }
  TensorView Y() const { return {y.data.get(), y.dtype, {num_rows, n}}; }
  TensorView W() const { return {w.data.get(), w.dtype, {num_groups(), k, n}}; }
  ConstTensorView Sizes() const { return {sizes.data(), {num_groups()}}; }
  GroupedGemmArgs ForwardArgs() const { return {X(), W(), Sizes(), Y()}; }
  GroupedGemmDgradArgs DgradArgs() const { return {Y(), W(), Sizes(), X()}; }
  GroupedGemmWgradArgs WgradArgs() const { return {X(), Y(), Sizes(), W()}; }

  int64_t ScratchBytes(int workers) const {
    return product == kForward ? GroupedGemmScratchBytes(ForwardArgs(), workers)
           : product == kDgrad ? GroupedGemmDgradScratchBytes(DgradArgs(), workers)
                               : GroupedGemmWgradScratchBytes(WgradArgs(), workers);
  }
  Status Run(const Context& context) const {
    return product == kForward ? GroupedGemm(ForwardArgs(), context)
           : product == kDgrad ? GroupedGemmDgrad(DgradArgs(), context)
                               : GroupedGemmWgrad(WgradArgs(), context);
  }

  // The largest error of some elements, in units of its bound.
  double MaxError() const {
    double worst = 0;
    int64_t begin = 0;
    for (int64_t g = 0; g < num_groups(); begin += sizes[g++]) {
      if (sizes[g] == 0) continue;
      const int64_t r = begin + g % sizes[g], i = g * 31 % k, j = g * 17 % n;
      double sum = 0, magnitude = 0;
      const auto add = [&](double a, double b) { sum += a * b, magnitude += std::abs(a * b); };
      const auto weight = [&](int64_t row, int64_t column) {
        return w[(g * k + row) * n + column];
      };
      int64_t terms = product == kForward ? k : product == kDgrad ? n : sizes[g];
      for (int64_t t = 0; t < terms; ++t) {
        if (product == kForward) add(x[r * k + t], weight(t, j));
        if (product == kDgrad) add(y[r * n + t], weight(i, t));
        if (product == kWgrad) add(x[(begin + t) * k + i], y[(begin + t) * n + j]);
      }
      const double actual = product == kForward ? y[r * n + j]
                            : product == kDgrad ? x[r * k + i]
                                                : weight(i, j);
      worst = std::max(worst, std::abs(actual - sum) / ((terms + 2) * std::ldexp(magnitude, -24)));
    }
    return worst;
  }

  double Bytes(const GroupedGemmShape& shape) const {
    return product == kForward ? GroupedGemmBytes(shape, x.dtype, w.dtype, y.dtype)
           : product == kDgrad ? GroupedGemmDgradBytes(shape, y.dtype, w.dtype, x.dtype)
                               : GroupedGemmWgradBytes(shape, x.dtype, y.dtype, w.dtype);
  }

  Product product;
  int64_t num_rows, k, n;
  std::vector<int32_t> sizes;
  Array x, y, w;
};

void Measure(benchmark::State& state, Product product, DType type) {
  const int64_t rows = state.range(0), groups = state.range(1);
  const Bench bench(product, type, rows, groups, state.range(2), state.range(3));
  ThreadExecutor executor(static_cast<int>(state.range(4)));
  const int64_t bytes = bench.ScratchBytes(executor.num_workers());
  const Array scratch(DType::kF32, CeilDiv(bytes, 4));
  const Context context{&executor, scratch.data.get(), bytes};
  const double peak = tile::MeasurePeakGflops(type, &executor);
  const Status status = bench.Run(context);
  if (!status.ok()) return state.SkipWithError(status.message().c_str());
  const double error = bench.MaxError();
  if (!(error <= 1)) return state.SkipWithError("a result is outside its bound");
  for (auto _ : state) benchmark::DoNotOptimize(bench.Run(context).ok());

  const GroupedGemmShape shape{rows, groups, groups, bench.k, bench.n};
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  const double flops = GroupedGemmFlops(shape);
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, rate);
  state.counters["GB/s"] = benchmark::Counter(bench.Bytes(shape) * 1e-9, rate);
  state.counters["share_of_peak"] = benchmark::Counter(flops * 1e-9 / peak, rate);
  state.counters["max_error"] = error;
  state.SetLabel(Name(tile::Kernels().isa));
}

void Header(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"M", "E", "K", "N", "threads"})->Unit(benchmark::kMillisecond)->UseRealTime();
}
void OneShape(benchmark::internal::Benchmark* bench) {
  Header(bench);
  bench->Args({3072, 64, 512, 256, 2});
}
void Shapes(benchmark::internal::Benchmark* bench) {
  Header(bench);
  bench->Args({12288, 64, 2048, 1408, 2})
      ->Args({12288, 64, 2048, 1408, 1})
      ->Args({3072, 64, 2048, 1408, 2})
      ->Args({16384, 256, 512, 256, 2})
      ->Args({3072, 64, 512, 256, 2})
      ->Args({4096, 1, 512, 2048, 2})  // linear: one group
      ->Args({8192, 1, 512, 64, 2});   // one panel
}
BENCHMARK_CAPTURE(Measure, forward_bf16, kForward, DType::kBF16)->Apply(Shapes);
BENCHMARK_CAPTURE(Measure, dgrad_bf16, kDgrad, DType::kBF16)->Apply(Shapes);
BENCHMARK_CAPTURE(Measure, wgrad_bf16, kWgrad, DType::kBF16)->Apply(Shapes);
BENCHMARK_CAPTURE(Measure, forward_f32, kForward, DType::kF32)->Apply(OneShape);
BENCHMARK_CAPTURE(Measure, dgrad_f32, kDgrad, DType::kF32)->Apply(OneShape);
BENCHMARK_CAPTURE(Measure, wgrad_f32, kWgrad, DType::kF32)->Apply(OneShape);

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
