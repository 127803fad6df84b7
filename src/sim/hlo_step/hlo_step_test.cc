// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "sim/hlo/classify.h"
#include "sim/hlo_step/analysis.h"
#include "sim/hlo_step/hlo_graph.h"
#include "sim/xla_scheduler/scheduler.h"

namespace anabranch::sim::hlo {
namespace {

std::string Read(const std::string& name) {
  std::ifstream file(std::string(ANABRANCH_HLO_TESTDATA) + "/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Round numbers: a product of 1e12 FLOPs takes a second, 1e9 bytes of memory take one.
Hardware RoundHardware() {
  Hardware hardware;
  hardware.bf16_flops = 1e12;
  hardware.fp8_flops = 2e12;
  hardware.fp4_flops = 4e12;
  hardware.hbm_bandwidth = 1e9;
  hardware.scale_up_bandwidth = 1e6;
  hardware.scale_out_bandwidth = 1e5;
  hardware.scale_up_domain = 4;
  hardware.host_bandwidth = 1e3;
  return hardware;
}

// XLA's own order is the oracle: each instruction of each computation must stand where XLA put it.
void ExpectXlaOrder(const std::string& module_name, const std::string& order_name, int64_t limit,
                    bool multi_stream) {
  HloModule module;
  const Status status = ParseHlo(Read(module_name), &module);
  ASSERT_TRUE(status.ok()) << status.message();
  std::map<std::string, std::vector<std::string>> expected;
  std::stringstream lines(Read(order_name));
  for (std::string line; std::getline(lines, line);) {
    std::stringstream words(line);
    std::string name;
    words >> name;
    name.pop_back();
    for (std::string word; words >> word;) expected[name].push_back(word);
  }
  ASSERT_FALSE(expected.empty());
  GraphOptions graph_options;
  graph_options.num_devices = 64;
  SchedulerOptions options;
  options.limits[0] = limit;
  options.forbid_shared_devices = multi_stream;
  std::vector<ResourceCounts> inner(module.computations.size());
  size_t compared = 0;
  for (const int c : ScheduledComputations(module)) {
    Computation& computation = module.computations[c];
    HloGraph graph;
    ASSERT_TRUE(BuildHloGraph(module, computation, DefaultTimes(module, computation), graph_options,
                              inner, &graph)
                    .ok());
    std::vector<int> order;
    ASSERT_TRUE(LatencyHidingSchedule(graph.graph, options, &order).ok());
    inner[c] = PeakResources(graph.graph, order);
    Reorder(order, &computation);
    const auto found = expected.find(computation.name);
    if (found == expected.end()) continue;
    std::vector<std::string> names;
    for (const Instruction& i : computation.instructions) names.push_back(i.name);
    EXPECT_EQ(names, found->second) << computation.name;
    ++compared;
  }
  EXPECT_EQ(compared, expected.size());
}

TEST(XlaOrderTest, UnrolledLayers) {
  ExpectXlaOrder("layers.hlo", "layers.limit1.order", 1, false);
}
TEST(XlaOrderTest, UnrolledLayersTwoInFlight) {
  ExpectXlaOrder("layers.hlo", "layers.limit2.order", 2, false);
}
TEST(XlaOrderTest, UnrolledLayersMultiStreamedCollectivesKeepTheSharedDeviceRule) {
  ExpectXlaOrder("layers.hlo", "layers.limit4_streams.order", 4, true);
}
TEST(XlaOrderTest, LoopWithCopiesToTheHost) {
  ExpectXlaOrder("scan_offload.hlo", "scan_offload.limit1.order", 1, false);
}
TEST(XlaOrderTest, LoopWithCopiesToTheHostTwoInFlight) {
  ExpectXlaOrder("scan_offload.hlo", "scan_offload.limit2.order", 2, false);
}

// The fixtures would prove little if XLA had left the order as it was.
TEST(XlaOrderTest, FixturesAreReordered) {
  HloModule module;
  ASSERT_TRUE(ParseHlo(Read("layers.hlo"), &module).ok());
  std::string original = module.entry_computation().name + ":";
  for (const Instruction& i : module.entry_computation().instructions) original += " " + i.name;
  EXPECT_NE(original + "\n", Read("layers.limit1.order"));
  EXPECT_NE(Read("layers.limit1.order"), Read("layers.limit2.order"));
  EXPECT_NE(Read("layers.limit2.order"), Read("layers.limit4_streams.order"));
}

constexpr const char* kStep = R"(HloModule step, is_scheduled=true

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

slice_and_dot {
  p = bf16[4,1000,1000]{2,1,0} parameter(0)
  q = bf16[1000,1000]{1,0} parameter(1)
  n = s32[] parameter(2)
  z = s32[] constant(0)
  d = bf16[1,1000,1000]{2,1,0} dynamic-slice(p, n, z, z), dynamic_slice_sizes={1,1000,1000}
  b = bf16[1000,1000]{1,0} bitcast(d)
  ROOT dot = bf16[1000,1000]{1,0} dot(b, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY main {
  a = bf16[4,1000,1000]{2,1,0} parameter(0)
  w = bf16[1000,1000]{1,0} parameter(1)
  n = s32[] parameter(2)
  g = f32[1000]{0} parameter(3)
  ar = f32[1000]{0} all-reduce-start(g), replica_groups=[2,4]<=[8], to_apply=add
  f = bf16[1000,1000]{1,0} fusion(a, w, n), kind=kCustom, calls=slice_and_dot
  ar-done = f32[1000]{0} all-reduce-done(ar)
  c = bf16[1000,1000]{1,0} custom-call(f), custom_call_target="anabranch_x", frontend_attributes={latency_metadata="2000000"}
  m = bf16[1000,1000]{1,0} custom-call(c, w), custom_call_target="__cublas$gemm"
  u = bf16[1000,1000]{1,0} custom-call(m), custom_call_target="mystery"
  cs = (bf16[1000,1000]{1,0:S(5)}, bf16[1000,1000]{1,0}, u32[]) copy-start(u)
  cd = bf16[1000,1000]{1,0:S(5)} copy-done(cs)
  ROOT t = (f32[1000]{0}, bf16[1000,1000]{1,0:S(5)}) tuple(ar-done, cd)
}
)";

AnalysisOptions Devices(int64_t count) {
  AnalysisOptions options;
  options.num_devices = count;
  return options;
}

Analysis Analyze(const std::string& text, const AnalysisOptions& options = Devices(8)) {
  Analysis analysis;
  const Status status = AnalyzeHlo(text, RoundHardware(), options, &analysis);
  EXPECT_TRUE(status.ok()) << status.message();
  return analysis;
}

const InstructionCost& CostNamed(const Analysis& analysis, const std::string& name) {
  const Computation& entry = analysis.module.entry_computation();
  for (size_t n = 0; n < entry.instructions.size(); ++n) {
    if (entry.instructions[n].name == name) return analysis.costs[analysis.module.entry][n];
  }
  ADD_FAILURE() << name;
  return analysis.costs[analysis.module.entry][0];
}

TEST(HloCostTest, HandComputedCosts) {
  const Analysis analysis = Analyze(kStep);
  // 2 x 1000^3 FLOPs; memory: a slice of the first operand, the second, the index, the result.
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "f").flops, 2e9);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "f").bytes, 3 * 2e6 + 4);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "f").Seconds(),
                   6.000004e-3);                               // memory-bound: 2e-3 s of products
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "c").Seconds(), 2e-3);  // stated, in nanoseconds
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "m").flops, 2e9);
  EXPECT_TRUE(CostNamed(analysis, "u").guessed);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "u").Seconds(), 4e-3);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "cs").Seconds(), 2e6 / 1e3);
  EXPECT_EQ(CostNamed(analysis, "cs").stream, Stream::kD2h);
  // Gather and scatter of 4000 bytes by four ranks in one domain: 2 x 3/4 x 4000 bytes at 1e6/s.
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "ar").Seconds(), 6e-3);
}

TEST(HloCostTest, OurCallsCostWhatTheirHeadersSay) {
  // 6 tokens, 12 routed rows, H 8, F 4, 3 experts; one sequence of 4, 2 heads of 8 on one key head.
  const Analysis analysis = Analyze(R"(HloModule calls, is_scheduled=true

ENTRY main {
  x = bf16[6,8]{1,0} parameter(0)
  p = f32[6,2]{1,0} parameter(1)
  g = bf16[3,8,4]{2,1,0} parameter(2)
  d = bf16[3,4,8]{2,1,0} parameter(3)
  o = s32[4]{0} parameter(4)
  r = s32[12]{0} parameter(5)
  s = s32[6,2]{1,0} parameter(6)
  e = s32[3]{0} parameter(7)
  q = bf16[1,4,2,8]{3,2,1,0} parameter(8)
  k = bf16[1,4,1,8]{3,2,1,0} parameter(9)
  h = bf16[8,100]{1,0} parameter(10)
  l = s32[6]{0} parameter(11)
  m = f32[3,4,8]{2,1,0} parameter(12)
  moe = (bf16[6,8]{1,0}, bf16[12,8]{1,0}) custom-call(x, p, g, g, d, o, r, s), custom_call_target="anabranch_moe_ffn"
  rows = (bf16[6,8]{1,0}, bf16[6,8]{1,0}) custom-call(x, p, g, g, d, o), custom_call_target="anabranch_moe_ffn_rows"
  gemm = bf16[6,4]{1,0} custom-call(x, g, e), custom_call_target="anabranch_grouped_gemm"
  att = bf16[1,4,2,8]{3,2,1,0} custom-call(q, k, k), custom_call_target="anabranch_attention", backend_config="{causal = true}"
  all = bf16[1,4,2,8]{3,2,1,0} custom-call(q, k, k), custom_call_target="anabranch_attention", backend_config="{causal = false}"
  loss = f32[6]{0} custom-call(x, h, l), custom_call_target="anabranch_linear_cross_entropy"
  norm = bf16[6,8]{1,0} custom-call(x), custom_call_target="anabranch_rms_norm"
  step = f32[3,4,8]{2,1,0} custom-call(e, m), custom_call_target="anabranch_muon"
  odd = bf16[6,8]{1,0} custom-call(x), custom_call_target="anabranch_moe_ffn"
  far = bf16[6,8]{1,0} custom-call(x), custom_call_target="anabranch_expert_parallel_dispatch"
  ROOT t = (bf16[6,8]{1,0}) tuple(norm)
}
)");
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "moe").flops, 6.0 * 12 * 8 * 4);
  // Weights, rows in and out, gate, up and their activation: two bytes each.
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "moe").bytes,
                   2.0 * (3 * 3 * 8 * 4 + 2 * 6 * 8 + 4 * 12 * 4));
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "rows").flops, 6.0 * 6 * 8 * 4);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "gemm").flops, 2.0 * 6 * 8 * 4);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "att").flops, 2.0 * 16 * 2 * 10);  // 10 pairs of positions
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "all").flops, 2.0 * 16 * 2 * 16);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "loss").flops, 2.0 * 6 * 8 * 100);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "norm").bytes, 2.0 * 2 * 6 * 8);
  EXPECT_DOUBLE_EQ(CostNamed(analysis, "step").flops, 3 * 5 * (4.0 * 4 * 8 * 4 + 2.0 * 4 * 4 * 4));
  for (const char* name : {"moe", "rows", "gemm", "att", "loss", "norm", "step"}) {
    EXPECT_FALSE(CostNamed(analysis, name).guessed) << name;
  }
  EXPECT_TRUE(CostNamed(analysis, "odd").guessed);
  EXPECT_TRUE(CostNamed(analysis, "far").guessed);
}

TEST(TimelineTest, HandComputedStep) {
  const Analysis analysis = Analyze(kStep);
  // The all-reduce hides under f, which takes as long; then c, m, u; the copy is waited for at the
  // end.
  EXPECT_NEAR(analysis.summary.seconds, 6.000004e-3 + 2e-3 + 6e-3 + 4e-3 + 2000, 1e-9);
  EXPECT_NEAR(analysis.summary.streams[static_cast<int>(Stream::kDp)].exposed, 0, 1e-12);
  EXPECT_NEAR(analysis.summary.streams[static_cast<int>(Stream::kD2h)].exposed, 2000, 1e-9);
  AnalysisOptions options = Devices(8);
  options.timeline.overlap = false;
  const Analysis blocking = Analyze(kStep, options);
  EXPECT_NEAR(blocking.summary.seconds, analysis.summary.seconds + 6e-3, 1e-9);
  EXPECT_NEAR(blocking.summary.streams[static_cast<int>(Stream::kDp)].exposed, 6e-3, 1e-12);
}

TEST(TimelineTest, LoopsRunAsOftenAsTheySay) {
  const std::string loop = R"(HloModule m
body {
  p = (f32[1000]) parameter(0)
  x = f32[1000] get-tuple-element(p), index=0
  y = f32[1000] negate(x)
  ROOT t = (f32[1000]) tuple(y)
}
test {
  p = (f32[1000]) parameter(0)
  ROOT c = pred[] constant(true)
}
ENTRY e {
  a = f32[1000] parameter(0)
  t = (f32[1000]) tuple(a)
  ROOT w = (f32[1000]) while(t), condition=test, body=body, backend_config={"known_trip_count":{"n":"7"}}
}
)";
  EXPECT_NEAR(Analyze(loop).summary.seconds, 7 * 8000 / 1e9, 1e-15);
  std::string unknown = loop;
  unknown.replace(unknown.find("known_trip_count"), 5, "other");
  EXPECT_EQ(Analyze(unknown).timeline.unknown_loops, 1);
  std::string endless = loop;
  endless.replace(endless.find("\"7\""), 3, "\"99999999\"");
  Analysis analysis;
  EXPECT_EQ(AnalyzeHlo(endless, RoundHardware(), {}, &analysis).code(), StatusCode::kOutOfRange);
}

// What waits in a queue exposes what holds the queue: together they are what the step lost.
TEST(TimelineTest, ExposedTimeIsThatOfWhatRan) {
  AnalysisOptions options = Devices(64);
  options.reschedule = true;
  Analysis analysis;
  ASSERT_TRUE(AnalyzeHlo(Read("scan_offload.hlo"), RoundHardware(), options, &analysis).ok());
  double exposed = 0;
  for (const InstructionTime& entry : analysis.summary.asynchronous) {
    EXPECT_LE(entry.time.exposed, entry.time.busy * (1 + 1e-9));
    exposed += entry.time.exposed;
  }
  const double compute = analysis.summary.streams[static_cast<int>(Stream::kCompute)].busy;
  EXPECT_NEAR(compute + exposed, analysis.summary.seconds, 1e-9 * analysis.summary.seconds);
}

// A faster network is never slower, nor is any schedule faster than its compute.
TEST(TimelineTest, MonotoneInBandwidth) {
  const std::string text = Read("layers.hlo");
  for (const bool reschedule : {false, true}) {
    double before = 0;
    for (const double factor : {1.0, 2.0, 8.0}) {
      Hardware hardware = RoundHardware();
      hardware.scale_up_bandwidth = 1e9 * factor;
      hardware.scale_out_bandwidth = 1e8 * factor;
      Analysis analysis;
      AnalysisOptions options = Devices(64);
      options.reschedule = reschedule;
      ASSERT_TRUE(AnalyzeHlo(text, hardware, options, &analysis).ok());
      EXPECT_GE(analysis.summary.seconds,
                analysis.summary.streams[static_cast<int>(Stream::kCompute)].busy * (1 - 1e-9));
      if (factor > 1) {
        EXPECT_LE(analysis.summary.seconds, before);
      }
      before = analysis.summary.seconds;
    }
  }
}

TEST(AnalysisTest, ErrorsAreHandedUp) {
  Analysis analysis;
  EXPECT_FALSE(AnalyzeHlo("nonsense", RoundHardware(), {}, &analysis).ok());
  EXPECT_FALSE(AnalyzeHlo(kStep, RoundHardware(), Devices(-4), &analysis).ok());
  // Groups of eight devices on a machine of two.
  const Status status = AnalyzeHlo(kStep, RoundHardware(), Devices(2), &analysis);
  EXPECT_NE(status.message().find("names device"), std::string::npos);
}

TEST(AnalysisTest, ProfileNamesKernelsAndCollectives) {
  const std::string profile = ToProfile(Analyze(kStep));
  EXPECT_NE(profile.find("costs { name: \"f\" cost_us: 6000.004 }"), std::string::npos);
  EXPECT_NE(profile.find("costs { name: \"ar\" cost_us: 6000 }"), std::string::npos);
  EXPECT_EQ(profile.find("\"ar-done\""), std::string::npos);
  EXPECT_EQ(ToProfile(Analyze(kStep)), profile);
}

}  // namespace
}  // namespace anabranch::sim::hlo
