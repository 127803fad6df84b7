// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Plan and row operations at shapes of published models. bytes_per_second counts each operand
// once (ragged_plan_cost.h); the upper bound is the Copy row, a plain copy on the same threads.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/executor.h"
#include "ops/ragged_plan/ragged_plan.h"
#include "ops/ragged_plan/ragged_plan_cost.h"
#include "ops/ragged_plan/rows.h"

namespace anabranch {
namespace {

// Arguments of a benchmark: T, k, E, H, threads.
struct Case {
  explicit Case(const benchmark::State& state)
      : tokens(state.range(0)),
        topk(state.range(1)),
        num_experts(state.range(2)),
        hidden(state.range(3)),
        rows(tokens * topk),
        executor(static_cast<int>(state.range(4))),
        experts(rows),
        sizes(num_experts),
        offsets(num_experts + 1),
        row_token(rows),
        slot_row(rows),
        scratch_bytes(RaggedPlanScratchBytes(rows, num_experts)),
        scratch(static_cast<char*>(
            std::aligned_alloc(kCacheLineBytes, RoundUp(scratch_bytes, kCacheLineBytes)))),
        context{&executor, scratch.get(), scratch_bytes} {
    std::mt19937 generator(1);
    for (int32_t& id : experts) id = static_cast<int32_t>(generator() % num_experts);
    x.assign(tokens * hidden, ToBF16(1.5f));
    expert_rows.assign(rows * hidden, ToBF16(0.5f));
    weights.assign(rows, 0.25f);
  }
  RaggedPlanArgs PlanArgs() {
    return {ConstTensorView(experts.data(), {tokens, topk}),
            TensorView(sizes.data(), {num_experts}), TensorView(offsets.data(), {num_experts + 1}),
            TensorView(row_token.data(), {rows}), TensorView(slot_row.data(), {tokens, topk})};
  }
  ConstTensorView Rows() const { return ConstTensorView(expert_rows.data(), {rows, hidden}); }
  ConstTensorView SlotRow() const { return ConstTensorView(slot_row.data(), {tokens, topk}); }
  ConstTensorView Weights() const { return ConstTensorView(weights.data(), {tokens, topk}); }

  int64_t tokens, topk, num_experts, hidden, rows;
  ThreadExecutor executor;
  std::vector<int32_t> experts, sizes, offsets, row_token, slot_row;
  int64_t scratch_bytes;
  struct Free {
    void operator()(char* block) const { std::free(block); }
  };
  std::unique_ptr<char, Free> scratch;
  Context context;
  std::vector<BF16> x, expert_rows;
  std::vector<float> weights;
};

void Finish(benchmark::State& state, const Status& status, int64_t bytes) {
  if (!status.ok()) state.SkipWithError(status.message().c_str());
  state.SetBytesProcessed(state.iterations() * bytes);
}

void BenchRaggedPlan(benchmark::State& state) {
  Case c(state);
  Status status;
  for (auto _ : state) status = RaggedPlan(c.PlanArgs(), c.context);
  Finish(state, status, RaggedPlanBytes(c.tokens, c.topk, c.num_experts, c.rows));
}

void BenchGatherRows(benchmark::State& state) {
  Case c(state);
  Status status = RaggedPlan(c.PlanArgs(), c.context);
  const GatherRowsArgs args{ConstTensorView(c.x.data(), {c.tokens, c.hidden}),
                            ConstTensorView(c.row_token.data(), {c.rows}),
                            TensorView(c.expert_rows.data(), {c.rows, c.hidden})};
  for (auto _ : state) status = GatherRows(args, c.context);
  Finish(state, status, GatherRowsBytes(c.rows, c.rows, c.hidden, 2));
}

void BenchCombineRows(benchmark::State& state) {
  Case c(state);
  Status status = RaggedPlan(c.PlanArgs(), c.context);
  const CombineRowsArgs args{c.Rows(), c.SlotRow(), c.Weights(),
                             TensorView(c.x.data(), {c.tokens, c.hidden})};
  for (auto _ : state) status = CombineRows(args, c.context);
  Finish(state, status, CombineRowsBytes(c.tokens, c.topk, c.rows, c.hidden, 2));
}

void BenchCombineRowsGrad(benchmark::State& state) {
  Case c(state);
  Status status = RaggedPlan(c.PlanArgs(), c.context);
  std::vector<BF16> d_rows(c.rows * c.hidden);
  std::vector<float> d_weights(c.rows);
  const CombineRowsGradArgs args{c.Rows(),
                                 c.SlotRow(),
                                 ConstTensorView(c.offsets.data(), {c.num_experts + 1}),
                                 c.Weights(),
                                 ConstTensorView(c.x.data(), {c.tokens, c.hidden}),
                                 TensorView(d_rows.data(), {c.rows, c.hidden}),
                                 TensorView(d_weights.data(), {c.tokens, c.topk})};
  for (auto _ : state) status = CombineRowsGrad(args, c.context);
  Finish(state, status, CombineRowsGradBytes(c.tokens, c.topk, c.rows, c.rows, c.hidden, 2));
}

void BenchCopy(benchmark::State& state) {
  Case c(state);
  std::vector<BF16> to(c.rows * c.hidden);
  const int64_t bytes = c.rows * c.hidden * 2;
  constexpr int64_t kUnit = 1 << 17;
  for (auto _ : state) {
    c.executor.ParallelFor(bytes / kUnit, [&](int64_t unit, int) {
      std::memcpy(reinterpret_cast<char*>(to.data()) + unit * kUnit,
                  reinterpret_cast<const char*>(c.expert_rows.data()) + unit * kUnit, kUnit);
    });
  }
  state.SetBytesProcessed(state.iterations() * 2 * bytes);
}

void Shapes(benchmark::internal::Benchmark* bench) {
  for (int64_t threads : {1, 2}) {
    bench->Args({4096, 8, 256, 2048, threads});
    bench->Args({8192, 2, 8, 4096, threads});
    bench->Args({2048, 8, 64, 512, threads});
  }
  bench->ArgNames({"T", "k", "E", "H", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK(BenchRaggedPlan)->Name("ragged_plan")->Apply(Shapes);
BENCHMARK(BenchGatherRows)->Name("gather_rows/bf16")->Apply(Shapes);
BENCHMARK(BenchCombineRows)->Name("combine_rows/bf16")->Apply(Shapes);
BENCHMARK(BenchCombineRowsGrad)->Name("combine_rows_grad/bf16")->Apply(Shapes);
BENCHMARK(BenchCopy)->Name("copy")->Apply(Shapes);

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
