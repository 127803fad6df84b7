// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// linear_cross_entropy, forward and gradient, as a share of the multiply-add peak measured in the
// same process. w is f32, packed to bf16 inside the timed call. share_of_peak counts the model's
// operations (6 T H V with the gradient); the machine does a third more, see the cost header.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/scratch_block.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/linear_cross_entropy/linear_cross_entropy_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

struct Buffers {
  Buffers(int64_t tokens, int64_t hidden, int64_t vocabulary)
      : x(tokens * hidden),
        x_grad(x.size()),
        w(hidden * vocabulary),
        w_grad(w.size()),
        loss(tokens),
        normaliser(tokens),
        loss_grad(tokens, 1.0f / tokens),
        labels(tokens) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 1);
    for (BF16& value : x) value = ToBF16(normal(random));
    const float scale = 1 / std::sqrt(static_cast<float>(hidden));
    // A few thousand distinct values are as good as random ones for timing, and quick to make.
    std::vector<float> some(4099);
    for (float& value : some) value = normal(random) * scale;
    for (size_t i = 0; i < w.size(); ++i) w[i] = some[i % some.size()];
    for (int32_t& label : labels) label = random() % vocabulary;
  }
  template <typename Args>
  void SetInputs(Args& a, int64_t tokens, int64_t hidden, int64_t vocabulary) {
    a.x = ConstTensorView(x.data(), {tokens, hidden});
    a.w = ConstTensorView(w.data(), {hidden, vocabulary});
    a.labels = ConstTensorView(labels.data(), DType::kI32, {tokens});
  }

  std::vector<BF16> x, x_grad;
  std::vector<float> w, w_grad, loss, normaliser, loss_grad;
  std::vector<int32_t> labels;
};

// Arguments: tokens, hidden, vocabulary, threads, gradient (0 or 1).
void BM_LinearCrossEntropy(benchmark::State& state) {
  const int64_t tokens = state.range(0), hidden = state.range(1), vocabulary = state.range(2);
  Buffers b(tokens, hidden, vocabulary);
  LinearCrossEntropyArgs forward;
  b.SetInputs(forward, tokens, hidden, vocabulary);
  forward.loss = TensorView(b.loss.data(), {tokens});
  forward.normaliser = TensorView(b.normaliser.data(), {tokens});
  LinearCrossEntropyGradArgs grad;
  b.SetInputs(grad, tokens, hidden, vocabulary);
  grad.normaliser = ConstTensorView(b.normaliser.data(), {tokens});
  grad.loss_grad = ConstTensorView(b.loss_grad.data(), {tokens});
  grad.x_grad = TensorView(b.x_grad.data(), {tokens, hidden});
  grad.w_grad = TensorView(b.w_grad.data(), {hidden, vocabulary});

  ThreadExecutor executor(static_cast<int>(state.range(3)));
  const bool with_grad = state.range(4) != 0;
  const int64_t bytes = std::max(LinearCrossEntropyScratchBytes(forward, executor.num_workers()),
                                 LinearCrossEntropyGradScratchBytes(grad, executor.num_workers()));
  const ScratchBlock scratch(bytes);
  Context context = scratch.context(&executor);
  const double peak = tile::MeasurePeakGflops(DType::kBF16, &executor);
  const auto run = [&] {
    Status status = LinearCrossEntropy(forward, context);
    if (status.ok() && with_grad) status = LinearCrossEntropyGrad(grad, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  };
  run();  // touches every page
  for (auto _ : state) run();
  const LinearCrossEntropyProblem problem{tokens, hidden, vocabulary, 2, 4};
  const double flops =
      LinearCrossEntropyFlops(problem) + (with_grad ? LinearCrossEntropyGradFlops(problem) : 0);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["share_of_peak"] =
      benchmark::Counter(flops * 1e-9 / peak, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["peak_GFLOP/s"] = peak;
}
BENCHMARK(BM_LinearCrossEntropy)
    ->ArgNames({"T", "H", "V", "threads", "grad"})
    ->Args({2048, 512, 2048, 2, 0})
    ->Args({2048, 512, 2048, 2, 1})
    ->Args({2048, 512, 2048, 1, 1})
    ->Args({2048, 512, 32768, 2, 0})
    ->Args({2048, 512, 32768, 2, 1})
    ->Args({2048, 512, 32768, 1, 1})
    ->Args({1, 512, 129280, 2, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
