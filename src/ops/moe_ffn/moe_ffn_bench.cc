// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// moe_ffn, forward and gradient, as a share of the multiply-add peak measured in the same process,
// and the share of each of its products. Weights are plain bf16 [E,H,F] arrays, packed on the fly
// inside the timed call, or panels that pack_experts wrote before.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/scratch_block.h"
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

// The panels of experts, all four kinds.
struct Panels {
  Panels(const ConstTensorView& gate, const ConstTensorView& up, const ConstTensorView& down,
         Executor* executor) {
    PackExpertsArgs args{gate, up, down, {}};
    TensorView* const views[] = {&args.packed.gate_up, &args.packed.down,
                                 &args.packed.down_transposed, &args.packed.gate_up_transposed};
    for (int kind = 0; kind < kNumExpertPanelKinds; ++kind) {
      const ExpertPanelShape shape =
          ShapeOf(static_cast<ExpertPanel>(kind), DType::kBF16, gate.size(1), gate.size(2));
      memory[kind].resize(gate.size(0) * shape.panels * shape.panel_words() * 2);
      *views[kind] = TensorView(memory[kind].data(),
                                {gate.size(0), shape.panels, 2 * shape.words, tile::kPanelColumns});
    }
    const ScratchBlock scratch(PackExpertsScratchBytes(args, executor->num_workers()));
    Context context = scratch.context(executor);
    status = PackExperts(args, context);
    packed = {args.packed.gate_up, args.packed.down, args.packed.down_transposed,
              args.packed.gate_up_transposed};
  }

  Rows memory[kNumExpertPanelKinds];
  PackedExperts packed;
  Status status;
};

// Adds up the time of each of a call's parallel loops: one for each product, in order.
class TimingExecutor final : public Executor {
 public:
  explicit TimingExecutor(Executor* executor) : executor_(executor) {}
  int num_workers() const override { return executor_->num_workers(); }
  void ParallelFor(int64_t num_units, const std::function<void(int64_t, int)>& unit) override {
    const auto start = std::chrono::steady_clock::now();
    executor_->ParallelFor(num_units, unit);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (loop_ < kProducts) seconds_[loop_++] += took.count();
  }
  void NextCall() { loop_ = 0; }
  void Reset() { *this = TimingExecutor(executor_); }

  static constexpr int kProducts = 5;
  double seconds(int product) const { return seconds_[product]; }

 private:
  Executor* executor_;
  double seconds_[kProducts] = {};
  int loop_ = 0;
};

struct ProductName {
  const char* name;
  double products;  // of R x H x F
};
constexpr ProductName kProductNames[TimingExecutor::kProducts] = {
    {"gate_up", 2}, {"down", 1}, {"hidden_grad", 1}, {"x_grad", 2}, {"weight_grads", 3}};

// Arguments: tokens, hidden, expert width, experts, k, threads, gradient, packed (0 or 1).
void BM_MoeFfn(benchmark::State& state) {
  const int64_t tokens = state.range(0), hidden = state.range(1), width = state.range(2);
  const int64_t experts = state.range(3), k = state.range(4);
  Buffers b(tokens, hidden, width, experts, k);
  ThreadExecutor threads(static_cast<int>(state.range(5)));
  TimingExecutor executor(&threads);
  MoeFfnArgs forward;
  b.SetInputs(forward, tokens, hidden, width, experts, k);
  forward.y = TensorView(b.y.data(), {tokens, hidden});
  forward.gate_up = TensorView(b.gate_up.data(), {tokens * k, 2 * b.saved});
  MoeFfnGradArgs grad;
  b.SetInputs(grad, tokens, hidden, width, experts, k);
  grad.gate_up = TensorView(b.gate_up.data(), {tokens * k, 2 * b.saved});
  grad.y_grad = ConstTensorView(b.y_grad.data(), {tokens, hidden});
  grad.x_grad = TensorView(b.x_grad.data(), {tokens, hidden});
  grad.weights_grad = TensorView(b.weights_grad.data(), {tokens, k});
  grad.w_gate_grad = TensorView(b.w_gate_grad.data(), {experts, hidden, width});
  grad.w_up_grad = TensorView(b.w_up_grad.data(), {experts, hidden, width});
  grad.w_down_grad = TensorView(b.w_down_grad.data(), {experts, width, hidden});

  std::unique_ptr<Panels> panels;
  if (state.range(7) != 0) {
    panels = std::make_unique<Panels>(forward.w_gate, forward.w_up, forward.w_down, &threads);
    if (!panels->status.ok()) state.SkipWithError(panels->status.message().c_str());
    forward.packed = grad.packed = panels->packed;
  }
  const bool with_grad = state.range(6) != 0;
  const ScratchBlock scratch(std::max(MoeFfnScratchBytes(forward, executor.num_workers()),
                                      MoeFfnGradScratchBytes(grad, executor.num_workers())));
  Context context = scratch.context(&executor);
  const double peak = tile::MeasurePeakGflops(DType::kBF16, &threads);
  const auto run = [&] {
    executor.NextCall();
    Status status = MoeFfn(forward, context);
    if (status.ok() && with_grad) status = MoeFfnGrad(grad, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  };
  run();  // touches every page
  executor.Reset();
  for (auto _ : state) run();
  const MoeFfnProblem problem{tokens, tokens * k, hidden, width, experts, 2, 2};
  const double flops = MoeFfnFlops(problem) + (with_grad ? MoeFfnGradFlops(problem) : 0);
  const auto rate = [](double per_call) {
    return benchmark::Counter(per_call, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GFLOP/s"] = rate(flops * 1e-9);
  state.counters["share_of_peak"] = rate(flops * 1e-9 / peak);
  state.counters["peak_GFLOP/s"] = peak;
  for (int i = 0; i < (with_grad ? TimingExecutor::kProducts : 2); ++i) {
    const double work = kProductNames[i].products * MoeFfnFlops(problem) / 3 * 1e-9;
    state.counters[kProductNames[i].name] =
        work * static_cast<double>(state.iterations()) / executor.seconds(i) / peak;
  }
}
BENCHMARK(BM_MoeFfn)
    ->ArgNames({"T", "H", "F", "E", "k", "threads", "grad", "packed"})
    ->Args({2048, 2048, 1408, 64, 6, 2, 0, 0})
    ->Args({2048, 2048, 1408, 64, 6, 2, 1, 0})
    ->Args({2048, 2048, 1408, 64, 6, 2, 1, 1})
    ->Args({2048, 2048, 1408, 64, 6, 1, 1, 1})
    ->Args({512, 2048, 1408, 64, 6, 2, 1, 0})
    ->Args({512, 2048, 1408, 64, 6, 2, 1, 1})
    ->Args({2048, 512, 256, 256, 8, 2, 1, 0})
    ->Args({2048, 512, 256, 256, 8, 2, 1, 1})
    ->Args({2048, 512, 256, 64, 8, 2, 1, 0})
    ->Args({2048, 512, 256, 64, 8, 2, 1, 1})
    ->Args({4096, 256, 128, 64, 8, 2, 1, 0})
    ->Args({4096, 256, 128, 64, 8, 2, 1, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
