// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// The router at shapes of published models. items_per_second counts logits; bytes_per_second counts
// each operand once (router_cost.h).
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "base/executor.h"
#include "base/scratch_block.h"
#include "ops/router/router.h"
#include "ops/router/router_cost.h"

namespace anabranch {
namespace {

// Arguments of a benchmark: row of kModels, threads.
struct Model {
  const char* name;
  int64_t tokens, num_experts;
  RouterOptions options;
};
const Model kModels[] = {
    {"deepseek-v3", 4096, 256, {ScoreFunction::kSigmoid, 8, 8, 4, 2, true, 2.5f}},
    {"qwen3-moe", 4096, 128, {ScoreFunction::kSoftmax, 8, 1, 1, 2, true, 1.0f}},
    {"mixtral", 8192, 8, {ScoreFunction::kSoftmax, 2, 1, 1, 2, true, 1.0f}},
    {"gpt-oss", 4096, 128, {ScoreFunction::kSoftmaxTopk, 4, 1, 1, 2, false, 1.0f}},
    {"deepseek-v4", 4096, 256, {ScoreFunction::kSqrtSoftplus, 6, 1, 1, 2, true, 1.5f}},
};

void BenchRouter(benchmark::State& state, bool gradient) {
  const Model& model = kModels[state.range(0)];
  const int64_t tokens = model.tokens;
  const int64_t num_experts = model.num_experts;
  const int64_t topk = model.options.topk;
  ThreadExecutor executor(static_cast<int>(state.range(1)));
  const int64_t bytes = RouterScratchBytes(num_experts, executor.num_workers());
  const ScratchBlock scratch(bytes);
  Context context = scratch.context(&executor);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(tokens * num_experts);
  for (float& x : logits) x = normal(generator);
  std::vector<float> bias(num_experts, 0.01f), weights(tokens * topk), scores(tokens * num_experts);
  std::vector<float> d_logits(tokens * num_experts);
  std::vector<int32_t> experts(tokens * topk);
  const ConstTensorView logit_view(logits.data(), {tokens, num_experts});
  const RouterArgs args{logit_view,
                        ConstTensorView(bias.data(), {num_experts}),
                        TensorView(experts.data(), {tokens, topk}),
                        TensorView(weights.data(), {tokens, topk}),
                        TensorView(scores.data(), {tokens, num_experts}),
                        model.options};
  const RouterGradArgs grad_args{logit_view,
                                 args.experts,
                                 args.weights,
                                 args.scores,
                                 TensorView(d_logits.data(), {tokens, num_experts}),
                                 model.options};
  Status status = Router(args, context);
  for (auto _ : state) {
    status = gradient ? RouterGrad(grad_args, context) : Router(args, context);
  }
  if (!status.ok()) state.SkipWithError(status.message().c_str());
  state.SetLabel(model.name);
  state.SetItemsProcessed(state.iterations() * tokens * num_experts);
  state.SetBytesProcessed(state.iterations() * (gradient
                                                    ? RouterGradBytes(tokens, num_experts, topk, 4)
                                                    : RouterBytes(tokens, num_experts, topk, 4)));
}

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({benchmark::CreateDenseRange(0, std::size(kModels) - 1, 1), {1, 2}});
  bench->ArgNames({"model", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(BenchRouter, forward, false)->Name("router/f32")->Apply(Shapes);
BENCHMARK_CAPTURE(BenchRouter, gradient, true)->Name("router_grad/f32")->Apply(Shapes);

}  // namespace
}  // namespace anabranch

BENCHMARK_MAIN();
