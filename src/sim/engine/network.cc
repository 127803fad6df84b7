// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/engine/network.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/context.h"

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

// Where a group lies on one axis of a torus: `extent` members, `gap` chips apart.
struct Side {
  int64_t extent;
  int64_t gap;
  bool ring;
};

std::vector<Side> SidesOf(const Ports& ports, int64_t ranks, int64_t stride) {
  const int64_t chips =
      std::accumulate(ports.torus.begin(), ports.torus.end(), int64_t{1}, std::multiplies<>());
  std::vector<Side> sides;
  int64_t inner = 1;  // chips of one layer across this axis
  for (const int64_t size : ports.torus) {
    const int64_t gap = std::clamp<int64_t>(stride / inner, 1, size);
    const int64_t reach = std::clamp<int64_t>(CeilDiv(stride * ranks, inner), 1, size);
    const int64_t extent = std::max<int64_t>(reach / gap, 1);
    sides.push_back({extent, gap, size % 4 == 0 && chips >= 64 && extent * gap == size});
    inner *= size;
  }
  return sides;
}

// Bytes on the busiest link of the axis when every member of the group, `ranks` in all, sends a
// byte to every other, gap by gap.
double LinkBytes(const Side& side, double ranks) {
  const double extent = static_cast<double>(side.extent);
  const int64_t below = side.extent / 2;
  const double half = static_cast<double>(below);
  // On a ring a byte takes the shorter way: hops to all others, over two links. On a line the
  // middle link carries what the members of one half send to the other.
  const double crossing = side.ring ? half * (extent - half) / 2 : half * (extent - half);
  return static_cast<double>(side.gap) * crossing * ranks / extent;
}

void PlaceOnTorus(const Ports& ports, int64_t stride, Group* group) {
  double links = 0;
  double busiest = 0;
  const double ranks = static_cast<double>(group->local);
  for (const Side& side : SidesOf(ports, group->local, stride)) {
    if (side.extent <= 1) continue;
    links += (side.ring ? 2.0 : 1.0) / static_cast<double>(side.gap);
    busiest = std::max(busiest, LinkBytes(side, ranks));
  }
  const double all = 2 * static_cast<double>(ports.torus.size());
  if (links <= 0) return;
  group->gather = all / links;
  group->exchange = all * busiest / (ranks - 1);
}

}  // namespace

std::vector<int64_t> TorusShape(int64_t ranks, int64_t axes) {
  std::vector<int64_t> shape;
  for (; axes > 0; --axes) {
    // The largest divisor that is no longer than the side of a cube of the rest.
    int64_t side = 1;
    for (int64_t n = 1; n <= ranks; ++n) {
      int64_t power = 1;
      for (int64_t i = 0; i < axes; ++i) power = power > ranks ? power : power * n;
      if (power > ranks) break;
      if (ranks % n == 0) side = n;
    }
    shape.push_back(axes == 1 ? ranks : side);
    ranks /= shape.back();
  }
  return shape;
}

Group MakeGroup(const Ports& ports, int64_t ranks, int64_t stride) {
  stride = std::max<int64_t>(stride, 1);
  const int64_t room = std::max<int64_t>(ports.domain / stride, 1);
  Group group{ranks, std::gcd(ranks, std::min(room, ranks))};
  if (!ports.torus.empty()) PlaceOnTorus(ports, stride, &group);
  return group;
}

Transfer AllGather(const Ports& ports, const Group& group, double bytes) {
  if (group.ranks <= 1) return Transfer{};
  const double ranks = static_cast<double>(group.ranks);
  const double local = static_cast<double>(group.local);
  // Of the bytes from other domains, a member's NIC takes its share; all bytes but those that came
  // over its own NIC and its own piece arrive over the scale-up port.
  const double remote = bytes * (1 - local / ranks) / local;
  const double up = bytes * (1 - 1 / local);
  Transfer transfer = Make(ports, group.gather * up, remote);
  const double domains = ranks / local;
  const double ring = (ranks - domains) * ports.scale_up_hop + (domains - 1) * ports.scale_out_hop;
  if (bytes > 0) transfer.latency = std::max(transfer.latency, ring);
  return transfer;
}

Transfer Send(const Ports& ports, bool inside_domain, double bytes) {
  const double links = ports.torus.empty() ? 1 : 2 * static_cast<double>(ports.torus.size());
  return inside_domain ? Make(ports, links * bytes, 0) : Make(ports, 0, bytes);
}

Transfer AllToAll(const Ports& ports, const Group& group, double scale_up_bytes,
                  double scale_out_bytes) {
  if (group.ranks <= 1) return Transfer{};
  return Make(ports, group.exchange * scale_up_bytes, scale_out_bytes);
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
