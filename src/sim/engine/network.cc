// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/engine/network.h"

#include <algorithm>
#include <numeric>

namespace anabranch::sim {
namespace {

double Over(double bytes, double bandwidth) { return bytes > 0 ? bytes / bandwidth : 0; }

Transfer Make(const Ports& ports, double up_bytes, double out_bytes) {
  Transfer transfer;
  transfer.scale_up = Over(up_bytes, ports.scale_up);
  transfer.scale_out = Over(out_bytes, ports.scale_out);
  if (out_bytes > 0) {
    transfer.latency = ports.scale_out_latency;
  } else if (up_bytes > 0) {
    transfer.latency = ports.scale_up_latency;
  }
  return transfer;
}

// Share of its own time that a transfer keeps a port busy.
double Load(const Transfer& transfer, int port) {
  const double busiest = std::max(transfer.scale_up, transfer.scale_out);
  if (busiest <= 0) return 0;
  return (port == 0 ? transfer.scale_up : transfer.scale_out) / busiest;
}

}  // namespace

Group MakeGroup(const Ports& ports, int64_t ranks, int64_t stride) {
  const int64_t room = std::max<int64_t>(ports.domain / std::max<int64_t>(stride, 1), 1);
  return Group{ranks, std::gcd(ranks, std::min(room, ranks))};
}

Transfer AllGather(const Ports& ports, const Group& group, double bytes) {
  if (group.ranks <= 1) return Transfer{};
  const double ranks = static_cast<double>(group.ranks);
  const double local = static_cast<double>(group.local);
  // Of the bytes from other domains, a member's NIC takes its share; all bytes but those that came
  // over its own NIC and its own piece arrive over the scale-up port.
  const double remote = bytes * (1 - local / ranks) / local;
  const double up = bytes * (1 - 1 / local);
  return Make(ports, up, remote);
}

Transfer Send(const Ports& ports, bool inside_domain, double bytes) {
  return inside_domain ? Make(ports, bytes, 0) : Make(ports, 0, bytes);
}

Transfer AllToAll(const Ports& ports, const Group& group, double scale_up_bytes,
                  double scale_out_bytes) {
  if (group.ranks <= 1) return Transfer{};
  return Make(ports, scale_up_bytes, scale_out_bytes);
}

void FairSpeeds(const std::vector<const Transfer*>& transfers, std::vector<double>* speeds) {
  speeds->assign(transfers.size(), 0);
  std::vector<bool> frozen(transfers.size(), false);
  double room[2] = {1, 1};
  double level = 0;  // the speed that all unfrozen transfers have reached
  for (;;) {
    double demand[2] = {0, 0};
    bool any = false;
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (frozen[i]) continue;
      any = true;
      for (int port = 0; port < 2; ++port) demand[port] += Load(*transfers[i], port);
    }
    if (!any) return;
    double step = 1 - level;
    int full = -1;
    for (int port = 0; port < 2; ++port) {
      if (demand[port] > 0 && room[port] / demand[port] < step) {
        step = room[port] / demand[port];
        full = port;
      }
    }
    level += step;
    for (int port = 0; port < 2; ++port) room[port] -= step * demand[port];
    for (size_t i = 0; i < transfers.size(); ++i) {
      if (frozen[i]) continue;
      (*speeds)[i] = level;
      if (full < 0 || Load(*transfers[i], full) > 0) frozen[i] = true;
    }
  }
}

double DistinctParts(int64_t experts, int64_t topk, double parts) {
  if (parts <= 1) return experts > 0 && topk > 0 ? 1 : 0;
  const double inside = static_cast<double>(experts) / parts;
  double missed = 1;  // probability that no choice falls into a given part
  for (int64_t i = 0; i < topk; ++i) {
    const double left = static_cast<double>(experts - i);
    missed *= std::max(left - inside, 0.0) / left;
  }
  return parts * (1 - missed);
}

}  // namespace anabranch::sim
