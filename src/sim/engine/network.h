// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_ENGINE_NETWORK_H_
#define ANABRANCH_SIM_ENGINE_NETWORK_H_

#include <cstdint>
#include <vector>

// The network as ports. An accelerator has one port into its scale-up domain (NVLink, ICI) and one
// into the scale-out fabric (NIC), each full duplex; the fabrics themselves never block. A
// collective then takes its latency plus the time of its busiest port, which on such a fabric is
// what max-min fair sharing of all its flows gives. Collectives that run at the same time share the
// ports of the accelerator fairly.
//
// A scale-up domain may be a torus in place of a switch: the port is then all links of a chip, and
// a group that lies along some of the axes, or whose bytes take several hops, gets less out of it.
// Two collectives at a time are taken to share links even when their axes differ.
namespace anabranch::sim {

// Ports of one accelerator. Bandwidths are achieved ones, bytes per second and direction; an
// infinite bandwidth costs no time.
struct Ports {
  double scale_up = 0;
  double scale_out = 0;
  double scale_up_latency = 0;  // seconds a collective that stays inside a domain takes at least
  double scale_out_latency = 0;
  int64_t domain = 1;  // accelerators of one scale-up domain
  // Seconds of one step of a gather's ring, between neighbours of a domain and between domains.
  double scale_up_hop = 0;
  double scale_out_hop = 0;
  // A torus: its axes, that of rank 0's next neighbour first. Empty for a switch.
  std::vector<int64_t> torus = {};
};

// The sizes of `axes` axes of a torus of `ranks` chips: as nearly a cube as can be, ascending.
std::vector<int64_t> TorusShape(int64_t ranks, int64_t axes);

// A group of `ranks` accelerators, `local` of them in each scale-up domain. local divides ranks.
struct Group {
  int64_t ranks = 1;
  int64_t local = 1;
  // How many times longer than on a switch with the same port the scale-up part takes.
  double gather = 1;
  double exchange = 1;
};

// What one collective takes on the ports of its busiest member when it runs alone.
struct Transfer {
  double scale_up = 0;   // seconds of the scale-up port
  double scale_out = 0;  // seconds of the NIC
  double latency = 0;
  double Seconds() const { return latency + (scale_up > scale_out ? scale_up : scale_out); }
};

// The group that `ranks` members form when neighbours in it lie `stride` accelerators apart. On a
// torus it is a box with every stride-th chip of each axis; an axis of a multiple of four chips is
// a ring where the torus holds at least 64, else a line (as TPU slices are wired). Gathers run
// along all axes at once, two ways on a ring; exchanges along one axis after the other, bound by
// the busiest axis, which is the bisection's bound; a send goes one hop over one link.
Group MakeGroup(const Ports& ports, int64_t ranks, int64_t stride);

// All-gather whose result is `bytes` long, or reduce-scatter whose input is: every member receives
// (sends) bytes * (1 - 1 / ranks). Hierarchical: each remote byte crosses one NIC of the domain,
// and the domain's members pass it on over the scale-up fabric. The last piece comes round a ring
// of all members, domain after domain, so the latency is that of its steps where these take longer
// than a collective's least. An all-reduce is one of each.
Transfer AllGather(const Ports& ports, const Group& group, double bytes);

// Point to point, `bytes` one way.
Transfer Send(const Ports& ports, bool inside_domain, double bytes);

// All-to-all that moves `scale_up_bytes` through the busiest scale-up port and `scale_out_bytes`
// through the busiest NIC, one way.
Transfer AllToAll(const Ports& ports, const Group& group, double scale_up_bytes,
                  double scale_out_bytes);

// Max-min fair speeds of transfers that run together on one accelerator's ports: 1 is the speed of
// running alone. `speeds` has one entry per transfer; transfers without bytes get 1.
void FairSpeeds(const std::vector<const Transfer*>& transfers, std::vector<double>* speeds);

// Expected number of distinct parts that the `topk` experts of a token fall into, when `experts`
// are spread evenly over `parts` and every choice is equally likely: n (1 - C(E - E/n, k) / C(E,
// k)).
double DistinctParts(int64_t experts, int64_t topk, double parts);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_ENGINE_NETWORK_H_
