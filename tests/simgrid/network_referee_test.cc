// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// SimGrid as referee of the planner's network: 64 hosts in domains of 8, every flow simulated.
// Long.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/engine.h"
#include "sim/engine/network.h"
#include "simgrid/two_level_platform.h"

namespace anabranch::sim {
namespace {

struct Flow {
  int from;
  int to;
  double bytes;
};

// Simulates flows one by one.
class Referee {
 public:
  static Referee& Get() {
    static Referee* referee = new Referee();
    return *referee;
  }

  // Seconds until the last of `flows`, all begun at once, has ended.
  double Seconds(const std::vector<Flow>& flows) {
    double seconds = 0;
    simgrid::s4u::Actor::create("driver", hosts_[0], [&] {
      const double begin = simgrid::s4u::Engine::get_clock();
      std::vector<simgrid::s4u::CommPtr> comms;
      comms.reserve(flows.size());
      for (const Flow& flow : flows) {
        comms.push_back(simgrid::s4u::Comm::sendto_async(hosts_[flow.from], hosts_[flow.to],
                                                         static_cast<uint64_t>(flow.bytes)));
      }
      simgrid::s4u::Comm::wait_all(comms);
      seconds = simgrid::s4u::Engine::get_clock() - begin;
    });
    engine_->run();
    return seconds;
  }

 private:
  Referee() {
    // The defaults model TCP over Ethernet: 3 % less bandwidth, 13 times the latency, a window.
    std::vector<std::string> words = {"referee",
                                      "--cfg=network/bandwidth-factor:1",
                                      "--cfg=network/latency-factor:1",
                                      "--cfg=network/weight-S:0",
                                      "--cfg=network/crosstraffic:0",
                                      "--cfg=network/TCP-gamma:1e30",
                                      "--log=root.thres:warning"};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    int count = static_cast<int>(arguments.size());
    engine_ = new simgrid::s4u::Engine(&count, arguments.data());
    hosts_ = MakeTwoLevelPlatform();
  }

  simgrid::s4u::Engine* engine_;
  std::vector<simgrid::s4u::Host*> hosts_;
};

// An all-to-all of `bytes` a rank over neighbours [0, ranks), pair by pair times 1 + skew x noise.
std::vector<Flow> AllToAllFlows(int ranks, double bytes, double skew) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> noise(-1, 1);
  std::vector<Flow> flows;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from != to) flows.push_back({from, to, bytes / ranks * (1 + skew * noise(random))});
    }
  }
  return flows;
}

// What the flows put on the busiest port of each kind.
std::pair<double, double> BusiestPorts(const std::vector<Flow>& flows) {
  std::vector<double> load(4 * kHosts, 0.0);
  for (const Flow& flow : flows) {
    const int kind = flow.from / kDomain == flow.to / kDomain ? 0 : 2;
    load[kind * kHosts + flow.from] += flow.bytes;
    load[(kind + 1) * kHosts + flow.to] += flow.bytes;
  }
  const auto most = [&](int begin) {
    return *std::max_element(load.begin() + begin * kHosts, load.begin() + (begin + 2) * kHosts);
  };
  return {most(0), most(2)};
}

void ExpectWithinTwoPercent(double ours, double referee) {
  EXPECT_GT(referee, 0);
  EXPECT_NEAR(ours / referee, 1, 0.02);
}

TEST(NetworkReferee, AllToAllInsideAndAcrossDomains) {
  for (const int ranks : {8, 16, 64}) {
    for (const double skew : {0.0, 0.1}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, skew " + std::to_string(skew));
      const std::vector<Flow> flows = AllToAllFlows(ranks, 512e6, skew);
      const auto [up, out] = BusiestPorts(flows);
      const Ports ports = TestPorts();
      const Transfer transfer = AllToAll(ports, MakeGroup(ports, ranks, 1), up, out);
      ExpectWithinTwoPercent(transfer.Seconds(), Referee::Get().Seconds(flows));
    }
  }
}

// Hierarchical: a piece from another domain comes to the member with the sender's place in its
// domain, which hands it and its own piece to its neighbours.
TEST(NetworkReferee, AllGatherInsideAndAcrossDomains) {
  for (const int ranks : {8, 16, 64}) {
    SCOPED_TRACE(ranks);
    constexpr double kBytes = 1e9;
    std::vector<Flow> flows;
    const int domains = ranks / kDomain;
    for (int to = 0; to < ranks; ++to) {
      for (int domain = 0; domain < domains; ++domain) {
        const int from = domain * kDomain + to % kDomain;
        if (from != to) flows.push_back({from, to, kBytes / ranks});
      }
      for (int place = 0; place < kDomain; ++place) {
        const int from = to / kDomain * kDomain + place;
        if (from != to) flows.push_back({from, to, kBytes / kDomain});
      }
    }
    const Ports ports = TestPorts();
    const Transfer transfer = AllGather(ports, MakeGroup(ports, ranks, 1), kBytes);
    ExpectWithinTwoPercent(transfer.Seconds(), Referee::Get().Seconds(flows));
  }
}

TEST(NetworkReferee, PointToPoint) {
  for (const int to : {1, 9}) {
    const Transfer transfer = Send(TestPorts(), to < kDomain, 1e9);
    ExpectWithinTwoPercent(transfer.Seconds(), Referee::Get().Seconds({{0, to, 1e9}}));
  }
}

// Two collectives at once share the ports; one that lasts longer gets them alone at the end.
TEST(NetworkReferee, CollectivesTogether) {
  const Ports ports = TestPorts();
  const auto make = [&](double bytes) {
    const auto [up, out] = BusiestPorts(AllToAllFlows(16, bytes, 0));
    return AllToAll(ports, MakeGroup(ports, 16, 1), up, out);
  };
  std::vector<Flow> flows = AllToAllFlows(16, 512e6, 0);
  const std::vector<Flow> second = AllToAllFlows(16, 128e6, 0);
  flows.insert(flows.end(), second.begin(), second.end());
  std::vector<Task> tasks(2);
  tasks[0].stream = Stream::kEp;
  tasks[0].transfer = make(512e6);
  tasks[1].stream = Stream::kDp;
  tasks[1].transfer = make(128e6);
  Schedule schedule;
  ASSERT_TRUE(RunTasks(tasks, {}, {1.0}, &schedule).ok());
  ExpectWithinTwoPercent(schedule.seconds, Referee::Get().Seconds(flows));
}

}  // namespace
}  // namespace anabranch::sim
