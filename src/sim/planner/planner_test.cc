// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace anabranch::sim {
namespace {

// Ideal hardware: full peak, nothing bound by memory, no launches, no network time.
Request Ideal() {
  Request request;
  Hardware& hardware = request.hardware;
  hardware.bf16_flops = hardware.fp8_flops = hardware.fp4_flops = 1e12;
  hardware.hbm_capacity = 1e12;
  hardware.hbm_bandwidth = hardware.scale_up_bandwidth = INFINITY;
  hardware.scale_out_bandwidth = hardware.host_bandwidth = INFINITY;
  hardware.host_memory_bandwidth = INFINITY;
  hardware.scale_up_domain = 8;
  hardware.sms = 100;
  Model& model = request.model;
  model.vocabulary = 1000;
  model.hidden = 64;
  model.layers = 4;
  model.dense_layers = 4;
  model.dense_width = 128;
  model.heads = model.kv_heads = 4;
  model.head_size = 16;
  request.layout.batch = 1;
  request.layout.sequence = 256;
  return request;
}

Request WithExperts(int64_t ep) {
  Request request = Ideal();
  request.model.dense_layers = 0;
  request.model.experts = 16;
  request.model.topk = 2;
  request.model.expert_width = 32;
  request.layout.ranks = request.layout.ep = ep;
  request.layout.batch = 4 * ep;
  return request;
}

// A machine with every limit at work, loosely an H100.
Request Real() {
  Request request = WithExperts(16);
  Hardware& hardware = request.hardware;
  hardware.bf16_flops = 989e12;
  hardware.hbm_capacity = 80e9;
  hardware.hbm_bandwidth = 3e12;
  hardware.scale_up_bandwidth = 300e9;
  hardware.scale_out_bandwidth = 45e9;
  hardware.scale_up_latency = 1e-5;
  hardware.scale_out_latency = 4e-5;
  hardware.host_bandwidth = 50e9;
  hardware.host_memory_bandwidth = 60e9;
  hardware.launch_seconds = 3e-6;
  hardware.graph_launch_seconds = 1e-6;
  hardware.collective_sms = 20;
  hardware.gemm_half_rows = 100;
  hardware.gemm_half_depth = 100;
  Model& model = request.model;
  model.hidden = 1024;
  model.layers = 8;
  model.experts = 64;
  model.topk = 4;
  model.expert_width = 512;
  model.heads = 16;
  model.kv_heads = 4;
  model.head_size = 64;
  request.layout.sequence = 2048;
  request.layout.batch = 64;
  return request;
}

double Step(const Request& request) {
  Answer answer;
  const Status status = Simulate(request, &answer);
  EXPECT_TRUE(status.ok()) << status.message();
  return answer.step_seconds;
}

// FLOPs of one microbatch of Ideal() by hand, forward, input and weight gradients.
double DenseFlops(const Model& model, double tokens, double length) {
  const double hidden = static_cast<double>(model.hidden);
  const double heads = static_cast<double>(model.heads * model.head_size);
  const double keys = static_cast<double>(model.kv_heads * model.head_size);
  const double projections = 2 * tokens * hidden * (2 * heads + 2 * keys);
  const double ffn = 2 * tokens * hidden * 3 * static_cast<double>(model.dense_width);
  // Scores and their product with the values; the gradient does 2.5 times that.
  const double core = tokens / length * 4 * heads * length * (length + 1) / 2;
  const double layer = 3 * (projections + ffn) + 3.5 * core;
  return static_cast<double>(model.layers) * layer +
         6 * tokens * hidden * static_cast<double>(model.vocabulary);
}

TEST(Planner, OneRankTakesItsFlopsOverThePeak) {
  const Request request = Ideal();
  EXPECT_NEAR(Step(request) * 1e12 / DenseFlops(request.model, 256, 256), 1, 1e-12);
}

TEST(Planner, ZeroLayersLeaveTheHead) {
  Request request = Ideal();
  request.model.layers = request.model.dense_layers = 0;
  EXPECT_NEAR(Step(request), 6.0 * 256 * 64 * 1000 / 1e12, 1e-18);
}

TEST(Planner, InfiniteBandwidthExposesNothing) {
  Request request = WithExperts(8);
  Answer answer;
  ASSERT_TRUE(Simulate(request, &answer).ok());
  EXPECT_EQ(answer.stages[0].ep + answer.stages[0].dp + answer.stages[0].pp, 0);
  // Routed rows do not depend on the number of ranks.
  Request alone = WithExperts(1);
  EXPECT_NEAR(answer.step_seconds / Step(alone), 1, 1e-12);
}

TEST(Planner, OneHotExpertMakesItsRankDoEverything) {
  Request request = WithExperts(8);
  Answer balanced;
  Answer hot;
  ASSERT_TRUE(Simulate(request, &balanced).ok());
  request.imbalance.load.assign(16, 0);
  request.imbalance.load[3] = 1;
  ASSERT_TRUE(Simulate(request, &hot).ok());
  EXPECT_DOUBLE_EQ(hot.rank_load, 8);
  // 4 layers, 4 microbatches, 3 passes of 256 * 2 rows through three products, 7 times more of
  // them.
  const double products = 3 * 2.0 * 64 * 32;
  const double extra = 4 * 4 * 3 * 256 * 2 * products * 7 / 1e12;
  EXPECT_NEAR((hot.step_seconds - balanced.step_seconds) / extra, 1, 1e-9);
  EXPECT_NEAR(hot.imbalance_seconds / extra, 1, 1e-9);
  EXPECT_GT(hot.memory[0].Sum(), balanced.memory[0].Sum());
}

// Stages of equal length: one layer each, embedding and head cost nothing.
Request Stages(int64_t pp, int64_t microbatches) {
  Request request = Ideal();
  request.model.vocabulary = 1;
  request.model.tied = 1;
  request.hardware.bf16_flops = 1e9;
  request.layout.ranks = request.layout.pp = pp;
  request.layout.batch = microbatches;
  request.model.layers = request.model.dense_layers = pp;
  return request;
}

TEST(Planner, OneForwardOneBackwardHasItsBubble) {
  // (pp - 1) / (m + pp - 1) of the step; the head's one column is a few parts in 10^4 of a layer.
  Answer answer;
  ASSERT_TRUE(Simulate(Stages(4, 12), &answer).ok());
  for (const StageTime& time : answer.stages) {
    EXPECT_NEAR(time.bubble / answer.step_seconds, 3.0 / 15, 2e-3);
    EXPECT_NEAR((time.bubble + time.compute) / answer.step_seconds, 1, 1e-12);
  }
}

TEST(Planner, InterleavingDividesTheBubble) {
  Request request = Stages(4, 12);
  request.model.layers = request.model.dense_layers = 8;
  request.layout.vp = 2;
  request.layout.pipeline = 1;
  Answer answer;
  ASSERT_TRUE(Simulate(request, &answer).ok());
  EXPECT_NEAR(answer.stages[1].bubble / answer.step_seconds, 1.5 / 13.5, 4e-3);
}

TEST(Planner, DualPipeRunsEveryPassOnceWithLessBubble) {
  Request request = Stages(8, 32);
  const double plain = Step(request);
  request.layout.pipeline = 2;
  request.layout.overlap = 1;
  const auto phases = MakePhases(request.layout, 32);
  for (const auto& stage : phases) {
    int64_t forward = 0;
    int64_t backward = 0;
    for (const Phase& phase : stage) {
      forward += phase.forward.exists() ? 1 : 0;
      backward += phase.backward.exists() ? 1 : 0;
    }
    EXPECT_EQ(forward, 32);
    EXPECT_EQ(backward, 32);
  }
  EXPECT_LT(Step(request), plain);
}

TEST(Planner, FewMicrobatchesExtendToMany) {
  Request request = Real();
  request.layout.ranks = 64;
  request.layout.pp = 4;
  request.layout.vp = 2;
  request.layout.pipeline = 1;
  request.layout.batch = 16 * 60;
  const double whole = Step(request);
  request.microbatch_limit = 1;
  EXPECT_NEAR(Step(request) / whole, 1, 2e-3);
}

TEST(Planner, DualPipeExtendsOnceItHasSettled) {
  Request request = Stages(8, 120);
  request.layout.pipeline = 2;
  request.layout.overlap = request.layout.split_wgrad = 1;
  const double whole = Step(request);
  request.microbatch_limit = 1;
  Answer answer;
  ASSERT_TRUE(Simulate(request, &answer).ok());
  EXPECT_LT(answer.simulated_microbatches, 120);
  EXPECT_NEAR(answer.step_seconds / whole, 1, 2e-3);
}

TEST(Planner, EveryScheduleOfEverySizeEnds) {
  for (const int64_t pp : {1, 2, 3, 4, 6, 8}) {
    for (const int64_t groups : {1, 2, 5}) {
      for (const int64_t vp : {1, 2, 3}) {
        for (const int64_t pipeline : {0, 1, 2}) {
          for (const int64_t overlap : {0, 1}) {
            Request request = Stages(pp, groups * pp);
            request.model.layers = request.model.dense_layers = 24;
            request.layout.vp = vp;
            request.layout.pipeline = pipeline;
            request.layout.overlap = request.layout.split_wgrad = overlap;
            if (!Validate(request).ok()) continue;
            Answer answer;
            EXPECT_TRUE(Simulate(request, &answer).ok())
                << pp << groups << vp << pipeline << overlap;
          }
        }
      }
    }
  }
}

TEST(Planner, SameRequestSameBits) {
  Request request = Real();
  request.imbalance.zipf = 0.3;
  request.imbalance.jitter = 0.02;
  request.imbalance.seed = 5;
  Answer one;
  Answer two;
  ASSERT_TRUE(Simulate(request, &one).ok());
  ASSERT_TRUE(Simulate(request, &two).ok());
  EXPECT_EQ(ToJson(request, one), ToJson(request, two));
  request.imbalance.seed = 6;
  Answer other;
  ASSERT_TRUE(Simulate(request, &other).ok());
  EXPECT_NE(one.step_seconds, other.step_seconds);
}

TEST(Planner, MoreOfAnythingIsNeverSlower) {
  using Field = double Hardware::*;
  const Field more[] = {&Hardware::bf16_flops,          &Hardware::hbm_bandwidth,
                        &Hardware::scale_up_bandwidth,  &Hardware::scale_out_bandwidth,
                        &Hardware::host_bandwidth,      &Hardware::gemm_efficiency,
                        &Hardware::attention_efficiency};
  for (const int64_t overlap : {0, 1}) {
    for (const int64_t pp : {1, 4}) {
      Request request = Real();
      request.layout.ranks = 16 * pp;
      request.layout.pp = pp;
      request.layout.vp = pp > 1 ? 2 : 1;
      request.layout.overlap = request.layout.split_wgrad = overlap;
      request.layout.offload = pp > 1 ? int64_t{kLatent} : int64_t{0};
      request.imbalance.zipf = 0.2;
      const double before = Step(request);
      for (const Field& field : more) {
        Request better = request;
        better.hardware.*field *= field == &Hardware::gemm_efficiency ? 1.2 : 1.5;
        // Not exact: a shorter collective leaves more of a host copy to slow the compute after it,
        // and lists of ready tasks have anomalies (Graham 1966). Each is a few parts in 10^4 of a
        // step.
        EXPECT_LE(Step(better), before * 1.002) << "field " << (&field - more);
      }
    }
  }
}

TEST(Planner, MemoryCountsWhatItNames) {
  Request request = Ideal();
  request.layout.gradient_bytes = 4;
  request.layout.optimizer_bytes = 12;
  Answer answer;
  ASSERT_TRUE(Simulate(request, &answer).ok());
  const double attention = 4 * 64 * 64 + 2 * 64;
  const double parameters = 4 * (attention + 3 * 64 * 128) + 2 * 1000 * 64 + 64;
  EXPECT_DOUBLE_EQ(answer.memory[0].parameters, parameters);
  EXPECT_DOUBLE_EQ(answer.memory[0].weights, 2 * parameters);
  EXPECT_DOUBLE_EQ(answer.memory[0].optimizer, 12 * parameters);
  const Activations& saved = answer.memory[0].activations;
  EXPECT_DOUBLE_EQ(saved.residual, 4 * 2 * 256 * 64 * 2);
  EXPECT_DOUBLE_EQ(saved.dense_ffn, 4 * 256 * 3 * 128 * 2);
  request.layout.recompute = kFull;
  Answer less;
  ASSERT_TRUE(Simulate(request, &less).ok());
  EXPECT_DOUBLE_EQ(less.memory[0].activations.Sum(), 4 * 256 * 64 * 2);
  EXPECT_GT(less.step_seconds, answer.step_seconds);
}

TEST(Planner, ShardingAndStagesDivideMemory) {
  Request request = Real();
  request.layout.ep = 8;
  Answer one;
  ASSERT_TRUE(Simulate(request, &one).ok());
  request.layout.sharding = static_cast<int64_t>(Sharding::kFsdp);
  Answer sharded;
  ASSERT_TRUE(Simulate(request, &sharded).ok());
  EXPECT_LT(sharded.memory[0].weights, one.memory[0].weights);
  EXPECT_GT(sharded.memory[0].gathered, 0);
}

TEST(Planner, MuonPaysForItsMatrixProducts) {
  Request request = WithExperts(2);
  request.layout.sharding = 0;
  const double plain = Step(request);
  request.layout.optimizer = 1;
  // Infinite memory bandwidth leaves five iterations of 4 m n s + 2 s^3, s the shorter side, each
  // layer: queries and output [64, 64], keys and values the same, the router [64, 16], and gate, up
  // and down [64, 32] of a rank's 8 experts.
  const double square = 5 * 6.0 * 64 * 64 * 64;
  const double router = 5 * (4.0 * 64 * 16 * 16 + 2.0 * 16 * 16 * 16);
  const double expert = 5 * (4.0 * 64 * 32 * 32 + 2.0 * 32 * 32 * 32);
  const double flops = 4 * (4 * square + router + 8 * 3 * expert);
  EXPECT_NEAR((Step(request) - plain) / (flops / 1e12), 1, 1e-6);
  // Shared by the two ranks: half of the matrices outside the experts each.
  request.layout.sharding = 1;
  const double half = flops - 4 * (4 * square + router) / 2;
  EXPECT_NEAR((Step(request) - plain) / (half / 1e12), 1, 1e-6);
}

TEST(Planner, OffloadTakesFromTheDeviceWhatItNames) {
  Request request = Real();
  Answer kept;
  ASSERT_TRUE(Simulate(request, &kept).ok());
  request.layout.offload = kExpertHidden;
  Answer gone;
  ASSERT_TRUE(Simulate(request, &gone).ok());
  EXPECT_EQ(gone.memory[0].activations.expert_hidden, 0);
  EXPECT_GE(gone.step_seconds, kept.step_seconds);
}

TEST(Planner, TracesHoldEveryTask) {
  Request request = Real();
  request.trace = 1;
  Answer answer;
  ASSERT_TRUE(Simulate(request, &answer).ok());
  for (size_t i = 0; i < answer.program.tasks.size(); ++i) {
    EXPECT_LE(answer.schedule.start[i], answer.schedule.end[i]);
    EXPECT_LE(answer.schedule.end[i], answer.step_seconds);
  }
  EXPECT_NE(ToJson(request, answer).find("\"tasks\":["), std::string::npos);
}

TEST(Imbalance, ZipfMatchesPublishedSkew) {
  // Shares add up to k, and their Gini coefficient is the published one for 8 of 256: 0.105, 0.228
  // and 0.63 at exponents 0.2, 0.4 and 1 (there one sample; here the expectation).
  const std::pair<double, double> published[] = {{0.2, 0.105}, {0.4, 0.228}, {1.0, 0.63}};
  for (const auto& [zipf, gini] : published) {
    std::vector<double> shares = InclusionShares(256, 8, zipf);
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 8, 1e-9);
    std::sort(shares.begin(), shares.end());
    double weighted = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
      weighted += (2.0 * static_cast<double>(i + 1) - 257) * shares[i];
    }
    EXPECT_NEAR(weighted / (256 * 8), gini, 0.02);
  }
}

TEST(Imbalance, MaximaOfNormalsMatchTables) {
  // Medians of the largest of n; the published expectations 1.42, 2.35, 2.82, 3.25 lie just above.
  EXPECT_NEAR(MedianMaximum(2), 0.545, 1e-3);
  EXPECT_NEAR(MedianMaximum(64), 2.299, 1e-3);
  EXPECT_NEAR(MedianMaximum(1), 0, 1e-9);
  double sum = 0;
  for (int64_t seed = 0; seed < 500; ++seed) sum += NormalMaximum(seed, 1, 64);
  EXPECT_NEAR(sum / 500, 2.35, 0.08);  // the deviation of one draw is 0.43
}

TEST(Request, RefusesWhatCannotBe) {
  const auto message = [](const Request& request) { return Validate(request).message(); };
  Request request = WithExperts(8);
  EXPECT_EQ(message(request), "");
  request.layout.ep = 3;
  EXPECT_NE(message(request).find("ep=3"), std::string::npos);
  request = WithExperts(8);
  request.layout.batch = 7;
  EXPECT_NE(message(request).find("batch=7"), std::string::npos);
  request = WithExperts(8);
  request.layout.tp = 8;
  EXPECT_NE(message(request).find("attention heads"), std::string::npos);
  request = Ideal();
  request.layout.ranks = -1;
  EXPECT_NE(message(request).find("ranks=-1"), std::string::npos);
  request = Stages(4, 10);
  request.model.layers = request.model.dense_layers = 8;
  request.layout.vp = 2;
  EXPECT_NE(message(request).find("multiple of pp"), std::string::npos);
  request = Stages(3, 6);
  request.layout.pipeline = 2;
  EXPECT_NE(message(request).find("even"), std::string::npos);
}

TEST(Request, ReadsItsTextForm) {
  Request request;
  ASSERT_TRUE(ParseRequest("model.hidden 64\nimbalance.load 1.5\nrun.trace 1\n", &request).ok());
  EXPECT_EQ(request.model.hidden, 64);
  EXPECT_EQ(request.imbalance.load, std::vector<double>{1.5});
  for (const char* bad : {"model.hiden 64", "model.hidden", "model.hidden x", "model.hidden 1.5"}) {
    EXPECT_FALSE(ParseRequest(bad, &request).ok()) << bad;
  }
}

}  // namespace
}  // namespace anabranch::sim
