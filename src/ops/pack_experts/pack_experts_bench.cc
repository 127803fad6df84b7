// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// pack_experts, as a share of the copy bandwidth measured in the same process.
#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <optional>

#include "base/scratch_block.h"
#include "ops/pack_experts/pack_experts.h"
#include "ops/pack_experts/pack_experts_cost.h"
#include "tile/yardstick.h"

namespace anabranch {
namespace {

// Arguments: experts, hidden, width, bytes of a weight (2 or 4), threads.
void BM_PackExperts(benchmark::State& state) {
  const int64_t experts = state.range(0), hidden = state.range(1), width = state.range(2);
  const DType type = state.range(3) == 2 ? DType::kBF16 : DType::kF32;
  ThreadExecutor executor(static_cast<int>(state.range(4)));
  const int64_t weight_bytes = experts * hidden * width * SizeOf(type);
  // Any values pack alike, but pages that were never written would all be one page of zeros.
  const ScratchBlock weights(weight_bytes);
  std::memset(weights.data(), 1, weight_bytes);
  PackExpertsArgs args;
  args.w_gate = args.w_up = ConstTensorView(weights.data(), type, {experts, hidden, width});
  args.w_down = ConstTensorView(weights.data(), type, {experts, width, hidden});
  TensorView* const views[] = {&args.packed.gate_up, &args.packed.down,
                               &args.packed.down_transposed, &args.packed.gate_up_transposed};
  std::array<std::optional<ScratchBlock>, kNumExpertPanelKinds> panels;
  for (int kind = 0; kind < kNumExpertPanelKinds; ++kind) {
    const auto shape = ShapeOf(static_cast<ExpertPanel>(kind), DType::kBF16, hidden, width);
    const auto& memory =
        panels[kind].emplace(experts * shape.panels * shape.panel_words() * int64_t{4});
    *views[kind] = TensorView(memory.data(), DType::kBF16,
                              {experts, shape.panels, 2 * shape.words, tile::kPanelColumns});
  }
  const ScratchBlock scratch(PackExpertsScratchBytes(args, executor.num_workers()));
  Context context = scratch.context(&executor);
  for (auto _ : state) {
    const Status status = PackExperts(args, context);
    if (!status.ok()) state.SkipWithError(status.message().c_str());
  }
  const double moved = PackExpertsBytes({experts, hidden, width, SizeOf(type)});
  const double copy = tile::MeasureCopyGbPerSecond(&executor);
  const auto rate = [](double per_call) {
    return benchmark::Counter(per_call, benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["GB/s"] = rate(moved * 1e-9);
  state.counters["share_of_copy"] = rate(moved * 1e-9 / copy);
  state.counters["copy_GB/s"] = copy;
}
BENCHMARK(BM_PackExperts)
    ->ArgNames({"E", "H", "F", "bytes", "threads"})
    ->Args({64, 2048, 1408, 2, 2})
    ->Args({256, 512, 256, 2, 2})
    ->Args({256, 512, 256, 4, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
