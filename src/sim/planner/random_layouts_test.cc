// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// What must hold for any model, machine and layout, on drawn ones.
#include <gtest/gtest.h>

#include <random>

#include "sim/planner/planner.h"

namespace anabranch::sim {
namespace {

class Drawn {
 public:
  explicit Drawn(unsigned seed) : generator_(seed) {}

  // A request that passes Validate.
  Request Draw() {
    for (;;) {
      Request request;
      DrawHardware(&request.hardware);
      DrawModel(&request.model);
      DrawLayout(&request.layout);
      request.imbalance.zipf = Uniform(0, 0.5);
      request.imbalance.jitter = Uniform(0, 0.03);
      request.imbalance.seed = 7;
      if (Validate(request).ok()) return request;
    }
  }
  double Uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(generator_()) / 4294967296.0;
  }

 private:
  int64_t OneOf(std::initializer_list<int64_t> values) {
    return values.begin()[generator_() % values.size()];
  }
  void DrawHardware(Hardware* hardware) {
    hardware->bf16_flops = Uniform(2e14, 3e15);
    hardware->fp8_flops = 2 * hardware->bf16_flops;
    hardware->fp4_flops = 4 * hardware->bf16_flops;
    hardware->hbm_capacity = Uniform(5e10, 3e11);
    hardware->hbm_bandwidth = Uniform(2e12, 8e12);
    hardware->scale_up_bandwidth = hardware->hbm_bandwidth * Uniform(0.05, 0.2);
    hardware->scale_up_latency = Uniform(0, 5e-5);
    hardware->scale_up_domain = OneOf({1, 8, 64, 4096});
    hardware->torus_axes = OneOf({0, 0, 3});
    hardware->scale_out_bandwidth = Uniform(2e10, 1e11);
    hardware->scale_out_latency = Uniform(0, 1e-4);
    hardware->host_bandwidth = hardware->hbm_bandwidth * Uniform(0.01, 0.05);
    hardware->host_memory_bandwidth = Uniform(5e10, 5e11);
    hardware->sms = 132;
    hardware->collective_sms = OneOf({0, 12, 24});
    hardware->gemm_half_rows = Uniform(0, 200);
    hardware->gemm_half_depth = Uniform(0, 200);
    hardware->launch_seconds = Uniform(0, 5e-6);
    hardware->graph_launch_seconds = hardware->launch_seconds / 3;
  }
  void DrawModel(Model* model) {
    model->vocabulary = 32000;
    model->hidden = OneOf({512, 2048, 7168});
    model->layers = OneOf({1, 4, 8, 12});
    model->dense_layers = OneOf({0, 1});
    model->dense_width = 2 * model->hidden;
    model->experts = OneOf({8, 64, 256});
    model->topk = OneOf({1, 2, 8});
    model->expert_width = OneOf({256, 2048});
    model->shared_experts = OneOf({0, 1});
    model->heads = model->kv_heads = 16;
    model->head_size = 128;
  }
  void DrawLayout(Layout* layout) {
    layout->tp = OneOf({1, 1, 2, 4});
    layout->cp = OneOf({1, 1, 2});
    layout->pp = OneOf({1, 2, 4});
    layout->vp = OneOf({1, 1, 2});
    layout->ep = OneOf({1, 2, 8, 64});
    layout->ranks = layout->pp * OneOf({8, 64, 128});
    layout->pipeline = layout->vp > 1 ? 1 : OneOf({0, 0, 2});
    layout->sharding = OneOf({0, 1, 3});
    layout->batch = layout->dp() * OneOf({4, 8, 16});
    layout->format = OneOf({0, 2, 3, 4});
    layout->overlap = layout->split_wgrad = OneOf({0, 1});
    layout->shared_overlap = OneOf({0, 1});
    layout->dedup = OneOf({0, 1});
    layout->fused_dispatch = OneOf({0, 1});
    layout->single_stream = OneOf({0, 1});
    layout->graph = OneOf({0, 1, 2});
    layout->recompute = OneOf({0, kNorm | kLatent, kExpertHidden, kFull});
    layout->offload = layout->recompute == 0 ? OneOf({0, kExpertHidden}) : 0;
  }

  std::mt19937 generator_;
};

double Step(const Request& request) {
  Answer answer;
  const Status status = Simulate(request, &answer);
  EXPECT_TRUE(status.ok()) << status.message();
  return answer.step_seconds;
}

TEST(RandomLayouts, TheSameRequestGivesTheSameBits) {
  Drawn drawn(1);
  for (int n = 0; n < 100; ++n) {
    const Request request = drawn.Draw();
    Answer one;
    Answer two;
    ASSERT_TRUE(Simulate(request, &one).ok());
    ASSERT_TRUE(Simulate(request, &two).ok());
    ASSERT_EQ(ToJson(request, one), ToJson(request, two)) << n;
  }
}

struct Improvement {
  const char* name;
  void (*apply)(Hardware*, double);
};

constexpr Improvement kImprovements[] = {
    {"flops",
     [](Hardware* hardware, double factor) {
       hardware->bf16_flops *= factor;
       hardware->fp8_flops *= factor;
       hardware->fp4_flops *= factor;
     }},
    {"hbm", [](Hardware* hardware, double factor) { hardware->hbm_bandwidth *= factor; }},
    {"scale-up", [](Hardware* hardware, double factor) { hardware->scale_up_bandwidth *= factor; }},
    {"scale-out",
     [](Hardware* hardware, double factor) { hardware->scale_out_bandwidth *= factor; }},
    {"host", [](Hardware* hardware, double factor) { hardware->host_bandwidth *= factor; }},
    {"latency",
     [](Hardware* hardware, double factor) {
       hardware->scale_up_latency /= factor;
       hardware->scale_out_latency /= factor;
     }},
    {"launch",
     [](Hardware* hardware, double factor) {
       hardware->launch_seconds /= factor;
       hardware->graph_launch_seconds /= factor;
     }},
};

// Neither the cut into stages nor the order of launches depends on the hardware. What a collective
// takes from compute may move from where compute waits to where it works, which is rare and little.
TEST(RandomLayouts, FasterHardwareIsNeverSlower) {
  Drawn drawn(2);
  int slower = 0;
  int changes = 0;
  for (int n = 0; n < 300; ++n) {
    const Request request = drawn.Draw();
    const double before = Step(request);
    for (const Improvement& improvement : kImprovements) {
      Request faster = request;
      improvement.apply(&faster.hardware, drawn.Uniform(1.01, 4));
      const double after = Step(faster);
      EXPECT_LE(after, before * 1.02) << n << " " << improvement.name;
      slower += after > before * 1.002 ? 1 : 0;
      ++changes;
    }
  }
  EXPECT_LE(slower * 1000, changes) << slower << " of " << changes;
}

// What must fit does not depend on what there is, so more memory never fits less.
TEST(RandomLayouts, CapacityChangesNoMemoryAndNoTime) {
  Drawn drawn(3);
  for (int n = 0; n < 100; ++n) {
    Request request = drawn.Draw();
    Answer before;
    ASSERT_TRUE(Simulate(request, &before).ok());
    request.hardware.hbm_capacity *= drawn.Uniform(1, 4);
    Answer after;
    ASSERT_TRUE(Simulate(request, &after).ok());
    EXPECT_EQ(after.step_seconds, before.step_seconds);
    for (size_t stage = 0; stage < before.memory.size(); ++stage) {
      EXPECT_EQ(after.memory[stage].Sum(), before.memory[stage].Sum()) << n;
    }
  }
}

// More skew never makes the busiest rank faster or smaller.
TEST(RandomLayouts, SkewNeverHelps) {
  Drawn drawn(4);
  for (int n = 0; n < 100; ++n) {
    Request request = drawn.Draw();
    Answer even;
    ASSERT_TRUE(Simulate(request, &even).ok());
    request.imbalance.zipf += 0.3;
    Answer skewed;
    ASSERT_TRUE(Simulate(request, &skewed).ok());
    EXPECT_GE(skewed.rank_load, even.rank_load * (1 - 1e-9)) << n;
    EXPECT_GE(skewed.step_seconds, even.step_seconds * 0.997) << n;
  }
}

}  // namespace
}  // namespace anabranch::sim
