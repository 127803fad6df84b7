// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/planner/planner.h"

namespace anabranch::sim {
namespace {

// Two microbatches of a model of expert layers, the second's forward pass beside the first's
// backward pass.
Request Overlapped(double flops, double bandwidth) {
  Request request;
  Hardware& hardware = request.hardware;
  hardware.bf16_flops = hardware.fp8_flops = hardware.fp4_flops = flops;
  hardware.hbm_capacity = 1e11;
  hardware.hbm_bandwidth = 3e12;
  hardware.scale_up_bandwidth = hardware.scale_out_bandwidth = bandwidth;
  hardware.scale_up_domain = 8;
  hardware.host_bandwidth = hardware.host_memory_bandwidth = 1e11;
  Model& model = request.model;
  model.vocabulary = 1000;
  model.hidden = 512;
  model.layers = 2;
  model.experts = 16;
  model.topk = 2;
  model.expert_width = 256;
  model.heads = model.kv_heads = 8;
  model.head_size = 64;
  Layout& layout = request.layout;
  layout.ranks = layout.ep = 2;
  layout.batch = 4;
  layout.overlap = layout.split_wgrad = 1;
  return request;
}

// The compute stream's tasks that take time, as they ran.
std::string Order(const Request& request) {
  Answer answer;
  EXPECT_TRUE(Simulate(request, &answer).ok());
  std::vector<size_t> found;
  for (size_t i = 0; i < answer.program.tasks.size(); ++i) {
    if (answer.program.tasks[i].stream == Stream::kCompute &&
        answer.schedule.end[i] > answer.schedule.start[i]) {
      found.push_back(i);
    }
  }
  std::sort(found.begin(), found.end(), [&](size_t a, size_t b) {
    return answer.schedule.start[a] < answer.schedule.start[b];
  });
  std::string text;
  for (const size_t i : found) {
    const Label& label = answer.program.labels[i];
    text += std::string(kKindNames[static_cast<int>(label.kind)]) + " " +
            std::to_string(label.layer) + " of " + std::to_string(label.microbatch) + "\n";
  }
  return text;
}

TEST(LaunchOrder, PassesAlternateAndWeightGradientsStandInTheGaps) {
  const std::string steady =
      "experts 0 of 1\nexperts backward 1 of 0\nweight gradients 1 of 0\n"
      "attention 1 of 1\nattention backward 1 of 0\nweight gradients 1 of 0\n";
  const std::string order = Order(Overlapped(1e15, 1e11));
  EXPECT_NE(order.find(steady), std::string::npos) << order;
}

TEST(LaunchOrder, DoesNotDependOnTheHardware) {
  const std::string order = Order(Overlapped(1e15, 1e11));
  EXPECT_EQ(Order(Overlapped(1e13, 1e11)), order);
  EXPECT_EQ(Order(Overlapped(1e15, 1e9)), order);
}

}  // namespace
}  // namespace anabranch::sim
