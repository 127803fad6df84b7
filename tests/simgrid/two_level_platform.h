// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TESTS_SIMGRID_TWO_LEVEL_PLATFORM_H_
#define ANABRANCH_TESTS_SIMGRID_TWO_LEVEL_PLATFORM_H_

#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/network.h"

// The planner's network as SimGrid's: every host has a port into its domain and a NIC, both full
// duplex and without latency; the fabrics never block.
namespace anabranch::sim {

constexpr int kHosts = 64;
constexpr int kDomain = 8;

inline Ports TestPorts() {
  Ports ports;
  ports.scale_up = 450e9;
  ports.scale_out = 50e9;
  ports.domain = kDomain;
  return ports;
}

// Hosts h0 to h63; neighbours share a domain.
inline std::vector<simgrid::s4u::Host*> MakeTwoLevelPlatform() {
  auto* zone = simgrid::s4u::create_full_zone("world");
  std::vector<simgrid::s4u::Host*> hosts;
  std::vector<std::pair<simgrid::s4u::Link*, simgrid::s4u::Link*>> up;
  std::vector<std::pair<simgrid::s4u::Link*, simgrid::s4u::Link*>> nic;
  const auto link = [&](const std::string& name, double bandwidth) {
    return zone->create_link(name, bandwidth)->set_latency(0)->seal();
  };
  const Ports ports = TestPorts();
  for (int host = 0; host < kHosts; ++host) {
    const std::string n = std::to_string(host);
    hosts.push_back(zone->create_host("h" + n, 1e9)->seal());
    up.emplace_back(link("uo" + n, ports.scale_up), link("ui" + n, ports.scale_up));
    nic.emplace_back(link("no" + n, ports.scale_out), link("ni" + n, ports.scale_out));
  }
  for (int from = 0; from < kHosts; ++from) {
    for (int to = 0; to < kHosts; ++to) {
      if (from == to) continue;
      const auto& used = from / kDomain == to / kDomain ? up : nic;
      zone->add_route(
          hosts[from]->get_netpoint(), hosts[to]->get_netpoint(), nullptr, nullptr,
          {simgrid::s4u::LinkInRoute(used[from].first), simgrid::s4u::LinkInRoute(used[to].second)},
          false);
    }
  }
  zone->seal();
  return hosts;
}

}  // namespace anabranch::sim

#endif  // ANABRANCH_TESTS_SIMGRID_TWO_LEVEL_PLATFORM_H_
