// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// attention, forward and gradient, as a share of the multiply-add peak measured in the same
// process. FLOPs are those of the pairs that see each other (attention_cost.h).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/scratch_block.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

std::vector<BF16> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<BF16> values(count);
  for (BF16& value : values) value = ToBF16(normal(random));
  return values;
}

// Arguments: B, S, N, M, D, Dv, threads, gradient (0 or 1).
void BM_Attention(benchmark::State& state) {
  const int64_t batch = state.range(0), length = state.range(1), heads = state.range(2);
  const int64_t kv_heads = state.range(3), size = state.range(4), value_size = state.range(5);
  const int64_t rows = batch * length;
  const std::vector<BF16> query = Random(rows * heads * size, 1);
  const std::vector<BF16> key = Random(rows * kv_heads * size, 2);
  const std::vector<BF16> value = Random(rows * kv_heads * value_size, 3);
  const std::vector<BF16> output_grad = Random(rows * heads * value_size, 4);
  std::vector<BF16> output(output_grad.size()), query_grad(query.size()), key_grad(key.size());
  std::vector<BF16> value_grad(value.size());
  std::vector<float> log_sum_exp(rows * heads);

  AttentionArgs forward;
  forward.scale = 1 / std::sqrt(static_cast<float>(size));
  forward.query = ConstTensorView(query.data(), {batch, length, heads, size});
  forward.key = ConstTensorView(key.data(), {batch, length, kv_heads, size});
  forward.value = ConstTensorView(value.data(), {batch, length, kv_heads, value_size});
  forward.output = TensorView(output.data(), {batch, length, heads, value_size});
  forward.log_sum_exp = TensorView(log_sum_exp.data(), {batch, heads, length});
  AttentionGradArgs grad;
  grad.scale = forward.scale;
  grad.query = forward.query;
  grad.key = forward.key;
  grad.value = forward.value;
  grad.output = forward.output;
  grad.log_sum_exp = forward.log_sum_exp;
  grad.output_grad = ConstTensorView(output_grad.data(), {batch, length, heads, value_size});
  grad.query_grad = TensorView(query_grad.data(), {batch, length, heads, size});
  grad.key_grad = TensorView(key_grad.data(), {batch, length, kv_heads, size});
  grad.value_grad = TensorView(value_grad.data(), {batch, length, kv_heads, value_size});

  ThreadExecutor executor(static_cast<int>(state.range(6)));
  const bool with_grad = state.range(7) != 0;
  const int64_t bytes = std::max(AttentionScratchBytes(forward, executor.num_workers()),
                                 AttentionGradScratchBytes(grad, executor.num_workers()));
  const ScratchBlock scratch(bytes);
  Context context = scratch.context(&executor);
  const double peak = tile::MeasurePeakGflops(DType::kBF16, &executor);
  const auto run = [&] {
    Status status = Attention(forward, context);
    if (status.ok() && with_grad) status = AttentionGrad(grad, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  };
  run();  // touches every page
  for (auto _ : state) run();
  const AttentionProblem problem{batch, length, heads, kv_heads, size, value_size, 2, true};
  const double flops = AttentionFlops(problem) + (with_grad ? AttentionGradFlops(problem) : 0);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["share_of_peak"] =
      benchmark::Counter(flops * 1e-9 / peak, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["peak_GFLOP/s"] = peak;
}
BENCHMARK(BM_Attention)
    ->ArgNames({"B", "S", "N", "M", "D", "Dv", "threads", "grad"})
    ->Args({4, 512, 8, 8, 96, 64, 1, 0})  // bench-190m
    ->Args({4, 512, 8, 8, 96, 64, 1, 1})
    ->Args({4, 512, 8, 8, 96, 64, 2, 1})
    ->Args({16, 256, 4, 4, 64, 64, 1, 0})  // default
    ->Args({16, 256, 4, 4, 64, 64, 1, 1})
    ->Args({1, 4096, 8, 2, 128, 128, 1, 0})  // grouped heads, long
    ->Args({1, 4096, 8, 2, 128, 128, 1, 1})
    ->Args({1, 4096, 8, 2, 128, 128, 2, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
