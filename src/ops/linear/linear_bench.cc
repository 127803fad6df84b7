// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// linear and its two gradients with bf16 rows and f32 weights, packed inside the timed call, as a
// share of the bf16 multiply-add peak measured in the same process.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/linear/linear_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

enum Product { kForward, kRowGradient, kWeightGradient };

// Arguments: rows, k, n, threads, product.
void BM_Linear(benchmark::State& state) {
  const int64_t rows = state.range(0), k = state.range(1), n = state.range(2);
  const int threads = static_cast<int>(state.range(3));
  const auto product = static_cast<Product>(state.range(4));
  ThreadExecutor executor(threads);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<BF16> x(rows * k), y(rows * n);
  std::vector<float> w(k * n), w_grad(k * n);
  for (BF16& value : x) value = ToBF16(normal(random));
  for (BF16& value : y) value = ToBF16(normal(random));
  for (float& value : w) value = normal(random);

  const LinearArgs forward{
      {x.data(), {rows, k}}, {w.data(), {k, n}}, TensorView(y.data(), {rows, n})};
  const LinearDgradArgs row_gradient{
      {y.data(), {rows, n}}, {w.data(), {k, n}}, TensorView(x.data(), {rows, k})};
  // As many leaves as a training step sums its tokens over by default.
  const LinearWgradArgs weight_gradient{
      {x.data(), {rows, k}}, {y.data(), {rows, n}}, TensorView(w_grad.data(), {k, n}), 8};
  const int64_t bytes = std::max({LinearScratchBytes(forward, threads),
                                  LinearDgradScratchBytes(row_gradient, threads),
                                  LinearWgradScratchBytes(weight_gradient, threads)});
  std::vector<float> scratch(bytes / sizeof(float) + 16);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  const Context context{&executor, scratch.data() + (-address & 63) / sizeof(float), bytes};
  for (auto _ : state) {
    Status status;
    if (product == kForward) status = Linear(forward, context);
    if (product == kRowGradient) status = LinearDgrad(row_gradient, context);
    if (product == kWeightGradient) status = LinearWgrad(weight_gradient, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  const double gigaflops = 1e-9 * LinearFlops(rows, k, n);
  const double peak = tile::MeasurePeakGflops(DType::kBF16, &executor);
  state.counters["GFLOP/s"] =
      benchmark::Counter(gigaflops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["share_of_peak"] =
      benchmark::Counter(gigaflops / peak, benchmark::Counter::kIsIterationInvariantRate);
}

// The shapes of `bench-190m`: the dense layer's up and down product, a low-rank projection, and the
// narrow one of keys and values.
void Shapes(benchmark::internal::Benchmark* bench) {
  constexpr int64_t kRows = 2048;
  const std::vector<std::vector<int64_t>> shapes = {
      {512, 1536}, {1536, 512}, {512, 256}, {512, 160}};
  for (const auto& shape : shapes) {
    for (const int product : {kForward, kRowGradient, kWeightGradient}) {
      bench->Args({kRows, shape[0], shape[1], 2, product});
    }
  }
  bench->Args({kRows, 512, 1536, 1, kForward});
}
BENCHMARK(BM_Linear)
    ->ArgNames({"rows", "k", "n", "threads", "product"})
    ->Apply(Shapes)
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
