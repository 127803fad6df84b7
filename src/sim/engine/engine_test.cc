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

TEST(Engine, LowestOrderGoesFirst) {
  Schedule schedule;
  ASSERT_TRUE(
      RunTasks({ComputeTask(1, 0, 0, 5), ComputeTask(2, 0, 0, 1)}, {}, {1}, &schedule).ok());
  EXPECT_DOUBLE_EQ(schedule.end[1], 2);
  EXPECT_DOUBLE_EQ(schedule.end[0], 3);
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
