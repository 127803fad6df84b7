// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// moe_ffn, forward and gradient, as a share of the multiply-add peak measured in the same process.
// Weights are packed on the fly from plain bf16 [E,H,F] arrays, inside the timed call.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "ops/moe_ffn/moe_ffn.h"
#include "ops/moe_ffn/moe_ffn_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

// XLA's buffers are aligned to cache lines; a plain vector's are not.
template <typename T>
struct LineAllocator {
  using value_type = T;
  T* allocate(size_t count) {
    return static_cast<T*>(std::aligned_alloc(
        kCacheLineBytes, RoundUp(static_cast<int64_t>(count * sizeof(T)), kCacheLineBytes)));
  }
  void deallocate(T* block, size_t) { std::free(block); }
  bool operator==(const LineAllocator&) const { return true; }
};
using Rows = std::vector<BF16, LineAllocator<BF16>>;

struct Buffers {
  Buffers(int64_t tokens, int64_t hidden, int64_t width, int64_t experts, int64_t k)
      : saved(MoeFfnSavedColumns(DType::kBF16, width)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto fill = [&](Rows& values, int64_t count) {
      values.resize(count);
      // Sixteen distinct values are as good as random ones for timing, and quick to make.
      BF16 some[16];
      for (BF16& value : some) value = ToBF16(uniform(random) * 0.05f);
      for (int64_t i = 0; i < count; ++i) values[i] = some[(i * 7 + i / 16) % 16];
    };
    fill(x, tokens * hidden);
    fill(y_grad, tokens * hidden);
    fill(w_gate, experts * hidden * width);
    fill(w_up, experts * hidden * width);
    fill(w_down, experts * width * hidden);
    y.resize(tokens * hidden);
    x_grad.resize(tokens * hidden);
    gate_up.resize(tokens * k * 2 * saved);
    w_gate_grad.resize(w_gate.size());
    w_up_grad.resize(w_gate.size());
    w_down_grad.resize(w_gate.size());
    weights.assign(tokens * k, 1.0f / k);
    weights_grad.resize(tokens * k);
    // Token t takes k experts in a row from a random start: balanced up to chance.
    std::vector<std::vector<int32_t>> slots(experts);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t start = random() % experts;
      for (int64_t s = 0; s < k; ++s) slots[(start + s) % experts].push_back(t * k + s);
    }
    offsets.assign(1, 0);
    slot_row.resize(tokens * k);
    for (const auto& group : slots) {
      for (int32_t slot : group) {
        slot_row[slot] = row_token.size();
        row_token.push_back(slot / k);
      }
      offsets.push_back(row_token.size());
    }
  }
  template <typename Args>
  void SetInputs(Args& a, int64_t tokens, int64_t hidden, int64_t width, int64_t experts,
                 int64_t k) {
    a.x = ConstTensorView(x.data(), {tokens, hidden});
    a.weights = ConstTensorView(weights.data(), {tokens, k});
    a.w_gate = ConstTensorView(w_gate.data(), {experts, hidden, width});
    a.w_up = ConstTensorView(w_up.data(), {experts, hidden, width});
    a.w_down = ConstTensorView(w_down.data(), {experts, width, hidden});
    a.group_offsets = ConstTensorView(offsets.data(), DType::kI32, {experts + 1});
    a.row_token = ConstTensorView(row_token.data(), DType::kI32, {tokens * k});
    a.slot_row = ConstTensorView(slot_row.data(), DType::kI32, {tokens, k});
  }

  int64_t saved;
  Rows x, y_grad, w_gate, w_up, w_down, y, x_grad, gate_up;
  Rows w_gate_grad, w_up_grad, w_down_grad;
  std::vector<float> weights, weights_grad;
  std::vector<int32_t> offsets, row_token, slot_row;
};

struct FreeDeleter {
  void operator()(void* block) const { std::free(block); }
};

// Arguments: tokens, hidden, expert width, experts, k, threads, gradient (0 or 1).
void BM_MoeFfn(benchmark::State& state) {
  const int64_t tokens = state.range(0), hidden = state.range(1), width = state.range(2);
  const int64_t experts = state.range(3), k = state.range(4);
  Buffers b(tokens, hidden, width, experts, k);
  MoeFfnArgs forward;
  b.SetInputs(forward, tokens, hidden, width, experts, k);
  forward.y = TensorView(b.y.data(), {tokens, hidden});
  forward.gate_up = TensorView(b.gate_up.data(), {tokens * k, 2 * b.saved});
  MoeFfnGradArgs grad;
  b.SetInputs(grad, tokens, hidden, width, experts, k);
  grad.gate_up = ConstTensorView(b.gate_up.data(), {tokens * k, 2 * b.saved});
  grad.y_grad = ConstTensorView(b.y_grad.data(), {tokens, hidden});
  grad.x_grad = TensorView(b.x_grad.data(), {tokens, hidden});
  grad.weights_grad = TensorView(b.weights_grad.data(), {tokens, k});
  grad.w_gate_grad = TensorView(b.w_gate_grad.data(), {experts, hidden, width});
  grad.w_up_grad = TensorView(b.w_up_grad.data(), {experts, hidden, width});
  grad.w_down_grad = TensorView(b.w_down_grad.data(), {experts, width, hidden});

  ThreadExecutor executor(static_cast<int>(state.range(5)));
  const bool with_grad = state.range(6) != 0;
  const int64_t bytes = std::max(MoeFfnScratchBytes(forward, executor.num_workers()),
                                 MoeFfnGradScratchBytes(grad, executor.num_workers()));
  const std::unique_ptr<void, FreeDeleter> scratch(
      std::aligned_alloc(kCacheLineBytes, RoundUp(bytes, kCacheLineBytes)));
  Context context{&executor, scratch.get(), bytes};
  const double peak = tile::MeasurePeakGflops(DType::kBF16, &executor);
  const auto run = [&] {
    Status status = MoeFfn(forward, context);
    if (status.ok() && with_grad) status = MoeFfnGrad(grad, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  };
  run();  // touches every page
  for (auto _ : state) run();
  const MoeFfnProblem problem{tokens, tokens * k, hidden, width, experts, 2, 2};
  const double flops = MoeFfnFlops(problem) + (with_grad ? MoeFfnGradFlops(problem) : 0);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["share_of_peak"] =
      benchmark::Counter(flops * 1e-9 / peak, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["peak_GFLOP/s"] = peak;
}
BENCHMARK(BM_MoeFfn)
    ->ArgNames({"T", "H", "F", "E", "k", "threads", "grad"})
    ->Args({2048, 2048, 1408, 64, 6, 2, 0})
    ->Args({2048, 2048, 1408, 64, 6, 2, 1})
    ->Args({2048, 2048, 1408, 64, 6, 1, 1})
    ->Args({512, 2048, 1408, 64, 6, 2, 1})
    ->Args({2048, 512, 256, 256, 8, 2, 1})
    ->Args({2048, 512, 256, 64, 8, 2, 1})
    ->Args({4096, 256, 128, 64, 8, 2, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
