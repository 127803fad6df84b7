// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>

namespace anabranch::sim {
namespace {

Task ComputeTask(double sm, double hbm, double fixed, int32_t order = 0) {
  Task task;
  task.sm_seconds = sm;
  task.hbm_seconds = hbm;
  task.fixed_seconds = fixed;
  task.order = order;
  return task;
}

Task TransferTask(Stream stream, double up, double out, double sm_share = 0) {
  Task task;
  task.stream = stream;
  task.transfer = Transfer{up, out, 0};
  task.sm_share = sm_share;
  return task;
}

TEST(Engine, RunsAChainOneAfterTheOther) {
  Schedule schedule;
  ASSERT_TRUE(
      RunTasks({ComputeTask(1, 0, 0), TransferTask(Stream::kEp, 2, 1), ComputeTask(0, 3, 0.5)},
               {{0, 1}, {1, 2}}, {1}, &schedule)
          .ok());
  EXPECT_DOUBLE_EQ(schedule.seconds, 6.5);
  EXPECT_DOUBLE_EQ(schedule.start[2], 3);
  EXPECT_EQ(schedule.cause[2], 1);
}

TEST(Engine, AStreamRunsInOrder) {
  Schedule schedule;
  ASSERT_TRUE(
      RunTasks({ComputeTask(1, 0, 0, 5), ComputeTask(2, 0, 0, 1)}, {}, {1}, &schedule).ok());
  EXPECT_DOUBLE_EQ(schedule.end[1], 2);
  EXPECT_DOUBLE_EQ(schedule.end[0], 3);
  // The first waits for a transfer; the second could start at once, but stands behind it.
  ASSERT_TRUE(
      RunTasks({ComputeTask(1, 0, 0, 1), ComputeTask(2, 0, 0, 5), TransferTask(Stream::kEp, 4, 0)},
               {{2, 0}}, {1}, &schedule)
          .ok());
  EXPECT_DOUBLE_EQ(schedule.start[0], 4);
  EXPECT_DOUBLE_EQ(schedule.start[1], 5);
  EXPECT_EQ(schedule.cause[1], 0);
}

TEST(Engine, ComputeLosesTheSmsThatACollectiveDrives) {
  // A collective of 1 s takes half of the SMs: 2 s of compute do 0.5 s in the first second and the
  // remaining 1.5 s afterwards.
  Schedule schedule;
  ASSERT_TRUE(
      RunTasks({ComputeTask(2, 0, 0), TransferTask(Stream::kEp, 1, 0, 0.5)}, {}, {1}, &schedule)
          .ok());
  EXPECT_DOUBLE_EQ(schedule.end[1], 1);
  EXPECT_DOUBLE_EQ(schedule.end[0], 2.5);
}

TEST(Engine, CollectivesShareAPortFairly) {
  // Both want the port for 1 s and 2 s: equal shares until the first ends at 2 s, then alone.
  Schedule schedule;
  ASSERT_TRUE(RunTasks({TransferTask(Stream::kEp, 1, 0), TransferTask(Stream::kDp, 2, 0)}, {}, {1},
                       &schedule)
                  .ok());
  EXPECT_DOUBLE_EQ(schedule.end[0], 2);
  EXPECT_DOUBLE_EQ(schedule.end[1], 3);
}

TEST(Engine, DifferentPortsDoNotDisturbEachOther) {
  Schedule schedule;
  ASSERT_TRUE(RunTasks({TransferTask(Stream::kEp, 1, 0), TransferTask(Stream::kDp, 0, 2)}, {}, {1},
                       &schedule)
                  .ok());
  EXPECT_DOUBLE_EQ(schedule.end[0], 1);
  EXPECT_DOUBLE_EQ(schedule.end[1], 2);
}

TEST(Engine, ClassesRunSideBySideAndSlowdownIsPerClass) {
  Schedule schedule;
  Task other = ComputeTask(1, 0, 0);
  other.rank_class = 1;
  ASSERT_TRUE(RunTasks({ComputeTask(1, 0, 0), other}, {}, {1, 1.5}, &schedule).ok());
  EXPECT_DOUBLE_EQ(schedule.end[0], 1);
  EXPECT_DOUBLE_EQ(schedule.end[1], 1.5);
}

TEST(Engine, NoTasksTakeNoTime) {
  Schedule schedule;
  ASSERT_TRUE(RunTasks({}, {}, {1}, &schedule).ok());
  EXPECT_EQ(schedule.seconds, 0);
}

TEST(Engine, RefusesCyclesAndBadNumbers) {
  Schedule schedule;
  const std::vector<Task> two = {ComputeTask(1, 0, 0), ComputeTask(1, 0, 0)};
  EXPECT_FALSE(RunTasks(two, {{0, 1}, {1, 0}}, {1}, &schedule).ok());
  EXPECT_FALSE(RunTasks(two, {{0, 2}}, {1}, &schedule).ok());
  EXPECT_FALSE(RunTasks(two, {}, {}, &schedule).ok());
  const std::vector<Task> turned = {ComputeTask(1, 0, 0, 1), ComputeTask(1, 0, 0, 0)};
  EXPECT_FALSE(RunTasks(turned, {{0, 1}}, {1}, &schedule).ok());
}

TEST(Network, FairSpeedsAreMaxMin) {
  // Loads: a uses only port 0, b both equally, c only port 1. Port 0 fills first at 1/2 each; c
  // then takes what is left of port 1.
  const Transfer a{1, 0, 0};
  const Transfer b{1, 1, 0};
  const Transfer c{0, 1, 0};
  std::vector<double> speeds;
  FairSpeeds({&a, &b, &c}, &speeds);
  EXPECT_DOUBLE_EQ(speeds[0], 0.5);
  EXPECT_DOUBLE_EQ(speeds[1], 0.5);
  EXPECT_DOUBLE_EQ(speeds[2], 0.5);
  const Transfer light{0.25, 1, 0};  // bound by port 1; leaves room on port 0
  FairSpeeds({&a, &light}, &speeds);
  EXPECT_DOUBLE_EQ(speeds[0], 0.8);
  EXPECT_DOUBLE_EQ(speeds[1], 0.8);
  const Transfer none{};
  FairSpeeds({&none, &a}, &speeds);
  EXPECT_EQ(speeds, (std::vector<double>{1, 1}));
}

TEST(Network, GathersAreHierarchical) {
  const Ports ports{100, 10, 1e-6, 5e-6, 8};
  EXPECT_EQ(AllGather(ports, Group{1, 1}, 1e3).Seconds(), 0);
  const Transfer inside = AllGather(ports, MakeGroup(ports, 8, 1), 800);
  EXPECT_DOUBLE_EQ(inside.scale_up, 7.0);  // 7/8 of 800 bytes at 100 per second
  EXPECT_EQ(inside.scale_out, 0);
  const Transfer across = AllGather(ports, MakeGroup(ports, 16, 1), 800);
  EXPECT_DOUBLE_EQ(across.scale_out,
                   800 * 0.5 / 8 / 10);  // the other domain's half, an eighth each
  EXPECT_DOUBLE_EQ(across.scale_up, 7.0);
  EXPECT_DOUBLE_EQ(across.latency, 5e-6);
  const Group strided = MakeGroup(ports, 16, 8);  // one member a domain
  EXPECT_EQ(strided.local, 1);
  EXPECT_DOUBLE_EQ(AllGather(ports, strided, 800).scale_out, 800 * 15.0 / 16 / 10);
}

TEST(Network, GathersGoRoundARing) {
  Ports ports{100, 10, 1e-6, 5e-6, 8};
  ports.scale_up_hop = 1e-6;
  ports.scale_out_hop = 1e-5;
  const auto latency = [&](int64_t ranks, int64_t stride) {
    return AllGather(ports, MakeGroup(ports, ranks, stride), 800).latency;
  };
  EXPECT_DOUBLE_EQ(latency(2, 1), 1e-6);           // a collective's least
  EXPECT_DOUBLE_EQ(latency(8, 1), 7e-6);           // seven steps inside the domain
  EXPECT_DOUBLE_EQ(latency(32, 1), 28e-6 + 3e-5);  // 31 steps, three of them between domains
  EXPECT_DOUBLE_EQ(latency(4, 8), 3e-5);           // one member a domain
  EXPECT_EQ(AllToAll(ports, MakeGroup(ports, 32, 1), 800, 800).latency, 5e-6);
  EXPECT_EQ(AllGather(ports, Group{1, 1}, 800).latency, 0);
}

// The shapes of TPU v5p slices.
TEST(Torus, IsNearlyACube) {
  const auto shape = [](int64_t ranks) { return TorusShape(ranks, 3); };
  EXPECT_EQ(shape(8), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(shape(32), (std::vector<int64_t>{2, 4, 4}));
  EXPECT_EQ(shape(64), (std::vector<int64_t>{4, 4, 4}));
  EXPECT_EQ(shape(128), (std::vector<int64_t>{4, 4, 8}));
  EXPECT_EQ(shape(256), (std::vector<int64_t>{4, 8, 8}));
  EXPECT_EQ(shape(1024), (std::vector<int64_t>{8, 8, 16}));
  EXPECT_EQ(shape(6144), (std::vector<int64_t>{16, 16, 24}));
  EXPECT_EQ(shape(7), (std::vector<int64_t>{1, 1, 7}));
  EXPECT_EQ(TorusShape(16, 2), (std::vector<int64_t>{4, 4}));
  EXPECT_TRUE(TorusShape(16, 0).empty());
}

// Links of 10 bytes per second: six of them are a chip's port of 60.
Ports TorusPorts(int64_t ranks) {
  Ports ports{60, 1, 0, 0, 8192};
  ports.torus = TorusShape(ranks, 3);
  return ports;
}

TEST(Torus, GathersUseTheLinksOfTheirAxes) {
  const Ports cube = TorusPorts(64);
  // All six links bring 63 / 64 of 640 bytes; along one axis two links bring three quarters.
  EXPECT_DOUBLE_EQ(AllGather(cube, MakeGroup(cube, 64, 1), 640).Seconds(), 630.0 / 60);
  for (const int64_t stride : {1, 4, 16}) {
    EXPECT_DOUBLE_EQ(AllGather(cube, MakeGroup(cube, 4, stride), 640).Seconds(), 480.0 / 20);
  }
  EXPECT_DOUBLE_EQ(AllGather(cube, MakeGroup(cube, 16, 4), 640).Seconds(), 600.0 / 40);
  // Every second chip of a ring: two groups share its links.
  EXPECT_DOUBLE_EQ(AllGather(cube, MakeGroup(cube, 2, 2), 640).Seconds(), 320.0 / 10);
  // Eight chips are no torus: a corner has three links.
  const Ports mesh = TorusPorts(8);
  EXPECT_DOUBLE_EQ(AllGather(mesh, MakeGroup(mesh, 8, 1), 640).Seconds(), 560.0 / 30);
}

TEST(Torus, ExchangesAreBoundByTheBisection) {
  const Ports cube = TorusPorts(64);
  // A ring of four, 10 bytes to each of three: 1 + 2 + 1 hops over two links.
  EXPECT_DOUBLE_EQ(AllToAll(cube, MakeGroup(cube, 4, 1), 30, 0).Seconds(), 40.0 / 20);
  // The cube, a byte to each of 63: 32 chips send 32 bytes each over the 2 x 16 links between
  // halves.
  EXPECT_DOUBLE_EQ(AllToAll(cube, MakeGroup(cube, 64, 1), 63, 0).Seconds(), 32.0 * 32 / 32 / 10);
  // 4 x 4 x 8: the longest axis binds: 64 chips, 64 bytes each, over 2 x 16 links.
  const Ports twice = TorusPorts(128);
  EXPECT_DOUBLE_EQ(AllToAll(twice, MakeGroup(twice, 128, 1), 127, 0).Seconds(),
                   64.0 * 64 / 32 / 10);
  // 2 x 2 x 2 without rings: 4 chips, 4 bytes each, over 4 links.
  const Ports mesh = TorusPorts(8);
  EXPECT_DOUBLE_EQ(AllToAll(mesh, MakeGroup(mesh, 8, 1), 7, 0).Seconds(), 4.0 * 4 / 4 / 10);
  EXPECT_DOUBLE_EQ(Send(cube, true, 50).Seconds(), 5);  // one hop, one link
}

TEST(Network, InfiniteBandwidthCostsNoTime) {
  Ports ports;
  ports.scale_up = ports.scale_out = INFINITY;
  ports.domain = 8;
  EXPECT_EQ(AllGather(ports, MakeGroup(ports, 64, 1), 1e12).Seconds(), 0);
  EXPECT_EQ(AllToAll(ports, MakeGroup(ports, 64, 1), 1e12, 1e12).Seconds(), 0);
}

TEST(Network, DistinctPartsMatchPublishedCounts) {
  // DeepSeek-V3: 8 of 256 experts over 8 nodes, 32 and 64 ranks.
  EXPECT_NEAR(DistinctParts(256, 8, 8), 5.29, 0.005);
  EXPECT_NEAR(DistinctParts(256, 8, 32), 7.27, 0.005);
  EXPECT_NEAR(DistinctParts(256, 8, 64), 7.68, 0.005);
  EXPECT_EQ(DistinctParts(256, 8, 1), 1);
  EXPECT_DOUBLE_EQ(DistinctParts(8, 8, 8), 8);
}

}  // namespace
}  // namespace anabranch::sim
