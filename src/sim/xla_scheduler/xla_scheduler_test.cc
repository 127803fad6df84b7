// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sim/xla_scheduler/scheduler.h"

namespace anabranch::sim::hlo {
namespace {

class Builder {
 public:
  int Plain(const std::string& name, double cost, std::vector<int> predecessors) {
    GraphNode node;
    node.name = name;
    node.cost = cost;
    node.predecessors = std::move(predecessors);
    graph.nodes.push_back(node);
    return static_cast<int>(graph.nodes.size()) - 1;
  }
  int Start(const std::string& name, std::vector<int> predecessors,
            const DeviceGroups* groups = nullptr) {
    const int number = Plain(name, 1, std::move(predecessors));
    graph.nodes[number].role = NodeRole::kStart;
    graph.nodes[number].groups = groups;
    graph.nodes[number].opaque = groups == nullptr;
    return number;
  }
  int Done(const std::string& name, int start, double latency) {
    const int number = Plain(name, 1, {start});
    graph.nodes[number].role = NodeRole::kDone;
    graph.nodes[number].resource = graph.nodes[start].resource;
    graph.nodes[number].start = start;
    graph.nodes[number].latency = latency;
    return number;
  }
  std::string Order(const SchedulerOptions& options = {}) {
    std::vector<int> order;
    const Status status = LatencyHidingSchedule(graph, options, &order);
    if (!status.ok()) return status.message();
    std::string text;
    for (const int node : order) text += (text.empty() ? "" : " ") + graph.nodes[node].name;
    return text;
  }

  ScheduleGraph graph;
};

SchedulerOptions Limit(int64_t collectives) {
  SchedulerOptions options;
  options.limits[0] = collectives;
  options.limits[1] = collectives;
  return options;
}

TEST(XlaSchedulerTest, EmptyAndSingleGraphs) {
  Builder empty;
  EXPECT_EQ(empty.Order(), "");
  Builder one;
  one.Plain("a", 1, {});
  EXPECT_EQ(one.Order(), "a");
}

// The start goes before independent work, the done after it, whatever the original order.
TEST(XlaSchedulerTest, WorkIsPutBetweenStartAndDone) {
  Builder b;
  const int in = b.Plain("in", 10, {});
  const int start = b.Start("s", {in});
  const int done = b.Done("d", start, 5000);
  const int work = b.Plain("work", 4000, {in});
  b.Plain("out", 10, {done, work});
  EXPECT_EQ(b.Order(), "in s work d out");
}

// Two collectives that share all devices: one after the other at limit 1, together at limit 2 only
// when the rule against deadlocks is off.
TEST(XlaSchedulerTest, OverlapLimitAndSharedDevices) {
  const DeviceGroups all = {{0, 1, 2, 3}};
  const DeviceGroups column = {{0, 4}, {1, 5}};
  for (const DeviceGroups* second : {&all, &column}) {
    Builder b;
    const int in = b.Plain("in", 10, {});
    const int s1 = b.Start("s1", {in}, &all);
    const int d1 = b.Done("d1", s1, 5000);
    const int s2 = b.Start("s2", {in}, second);
    const int d2 = b.Done("d2", s2, 5000);
    const int work = b.Plain("work", 100, {in});
    b.Plain("out", 10, {d1, d2, work});
    const auto peak = [&](const SchedulerOptions& options) {
      std::vector<int> order;
      EXPECT_TRUE(LatencyHidingSchedule(b.graph, options, &order).ok());
      return PeakResources(b.graph, order)[0];
    };
    SchedulerOptions careless = Limit(2);
    careless.forbid_shared_devices = false;
    EXPECT_EQ(peak(Limit(1)), 1);
    EXPECT_EQ(peak(careless), 2);
    EXPECT_EQ(peak(Limit(2)), second == &all ? 1 : 2);
  }
}

TEST(XlaSchedulerTest, ScaleUpCollectivesHaveTheirOwnLimit) {
  const DeviceGroups near = {{0, 1}};
  const DeviceGroups far = {{0, 2}, {1, 3}};
  Builder b;
  const int in = b.Plain("in", 10, {});
  const int s1 = b.Start("s1", {in}, &far);
  const int s2 = b.Start("s2", {in}, &near);
  b.graph.nodes[s2].resource = AsyncResource::kScaleUpCollective;
  const int d1 = b.Done("d1", s1, 5000);
  const int d2 = b.Done("d2", s2, 5000);
  b.Plain("out", 10, {d1, d2});
  std::vector<int> order;
  ASSERT_TRUE(LatencyHidingSchedule(b.graph, Limit(1), &order).ok());
  const ResourceCounts peak = PeakResources(b.graph, order);
  EXPECT_EQ(peak[0], 1);
  EXPECT_EQ(peak[1], 1);
  const auto at = [&](int node) { return std::find(order.begin(), order.end(), node); };
  EXPECT_LT(std::max(at(s1), at(s2)), std::min(at(d1), at(d2)));  // both are open together
}

// A copy to the host begins as soon as its data is there.
TEST(XlaSchedulerTest, CopiesToTheHostBeginEarly) {
  Builder b;
  const int in = b.Plain("in", 10, {});
  const int first = b.Plain("first", 1000, {in});
  const int start = b.Start("s", {in});
  b.graph.nodes[start].resource = AsyncResource::kAsyncCompute;
  b.graph.nodes[start].place_late = true;
  const int done = b.Done("d", start, 10);
  const int second = b.Plain("second", 1000, {first});
  b.Plain("out", 10, {second, done});
  EXPECT_EQ(b.Order(), "in s first second d out");
}

// Under pressure the node that frees memory goes to its definition first.
TEST(XlaSchedulerTest, MemoryLimitComesFirst) {
  Builder b;
  b.graph.buffer_bytes = {100, 100, 1};
  const int x = b.Plain("x", 1, {});
  const int y = b.Plain("y", 1, {});
  const int use_x = b.Plain("use_x", 1, {x});
  const int use_y = b.Plain("use_y", 1, {y, use_x});
  b.graph.nodes[x].defines = {0};
  b.graph.nodes[y].defines = {1};
  b.graph.nodes[use_x].uses = {0};
  b.graph.nodes[use_y].uses = {1};
  EXPECT_EQ(b.Order(), "x y use_x use_y");
  SchedulerOptions tight;
  tight.memory_limit = 120;
  EXPECT_EQ(b.Order(tight), "x use_x y use_y");
}

TEST(XlaSchedulerTest, ForcedNodesKeepTheirEnd) {
  Builder b;
  const int in = b.Plain("in", 1, {});
  const int a = b.Plain("a", 1, {in});
  const int c = b.Plain("c", 1, {in});
  b.Plain("out", 1, {a, c});
  EXPECT_EQ(b.Order(), "in a c out");
  b.graph.nodes[c].place_late = true;
  EXPECT_EQ(b.Order(), "in c a out");
  b.graph.nodes[c].place_late = false;
  b.graph.nodes[a].place_early = true;
  EXPECT_EQ(b.Order(), "in c a out");
}

TEST(XlaSchedulerTest, NonsenseIsRefused) {
  Builder forward;
  forward.Plain("a", 1, {0});
  EXPECT_NE(forward.Order().find("predecessor 0"), std::string::npos);
  Builder cost;
  cost.Plain("a", -1, {});
  EXPECT_NE(cost.Order().find("cost -1"), std::string::npos);
  cost.graph.nodes[0].cost = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(cost.Order().find("finite"), std::string::npos);
  Builder limit;
  limit.Plain("a", 1, {});
  EXPECT_NE(limit.Order(Limit(0)).find("overlap limit 0"), std::string::npos);
  Builder buffer;
  buffer.Plain("a", 1, {});
  buffer.graph.nodes[0].uses = {3};
  EXPECT_NE(buffer.Order().find("buffer 3"), std::string::npos);
}

// Whatever the graph, the order is a permutation that respects every edge and the limits.
TEST(XlaSchedulerTest, RandomGraphsAreOrderedValidly) {
  std::mt19937 random(7);
  const DeviceGroups groups[] = {{{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}, {{0, 1, 2, 3}}};
  for (int round = 0; round < 50; ++round) {
    Builder b;
    const int count = 5 + static_cast<int>(random() % 60);
    while (static_cast<int>(b.graph.nodes.size()) < count) {
      const int size = static_cast<int>(b.graph.nodes.size());
      std::vector<int> before;
      for (int k = 0; size > 0 && k < 2; ++k) {
        const int node = static_cast<int>(random() % size);
        // Nothing but its done uses a start.
        if (b.graph.nodes[node].role != NodeRole::kStart) before.push_back(node);
      }
      if (random() % 3 == 0) {
        const int start = b.Start("s", before, &groups[random() % 3]);
        b.Done("d", start, static_cast<double>(random() % 3000));
      } else {
        b.Plain("p", static_cast<double>(random() % 1000), before);
      }
    }
    const int64_t limit = 1 + static_cast<int64_t>(random() % 3);
    std::vector<int> order;
    ASSERT_TRUE(LatencyHidingSchedule(b.graph, Limit(limit), &order).ok());
    std::vector<int> place(b.graph.nodes.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);
    for (size_t i = 0; i < place.size(); ++i) {
      ASSERT_GE(place[i], 0);
      for (const int before : b.graph.nodes[i].predecessors) EXPECT_LT(place[before], place[i]);
    }
    EXPECT_LE(PeakResources(b.graph, order)[0], limit);
  }
}

}  // namespace
}  // namespace anabranch::sim::hlo
