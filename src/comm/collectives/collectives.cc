// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/collectives/collectives.h"

#include <algorithm>

#include "base/context.h"

namespace anabranch {
namespace {

// Elements of a unit of work: 256 KiB, well above the cost of handing it out.
constexpr int64_t kUnit = 1 << 16;

// Elements whose partial sums stay in the first level of cache, one array for each level of the
// tree.
constexpr int64_t kBlock = 1 << 10;

// y[0, count) = the subtree of `ranks` ranks, the first of which is at `from`, from element `begin`
// on. No more than kBlock elements.
void Subtree(const Window* from, int ranks, int64_t begin, int64_t count, float* y) {
  const auto of = [&](int rank) { return static_cast<const float*>(from[rank].data) + begin; };
  if (ranks == 1) {
    std::copy_n(of(0), count, y);
    return;
  }
  if (ranks == 2) {
    const float* const a = of(0);
    const float* const b = of(1);
    for (int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
    return;
  }
  const int half = ranks - ranks / 2;
  float second[kBlock];
  Subtree(from, half, begin, count, y);
  Subtree(from + half, ranks - half, begin, count, second);
  for (int64_t i = 0; i < count; ++i) y[i] += second[i];
}

}  // namespace

Status SumOverRanks(const SumOverRanksArgs& args, const Call& call, Transport& transport,
                    Executor& executor) {
  const Window window = {const_cast<float*>(args.x),
                         args.count * static_cast<int64_t>(sizeof(float))};
  const auto sum = [&](std::span<const Window> peers) {
    executor.ParallelFor(CeilDiv(args.count, kUnit), [&](int64_t unit, int) {
      const int64_t end = std::min(args.count, (unit + 1) * kUnit);
      for (int64_t at = unit * kUnit; at < end; at += kBlock) {
        Subtree(peers.data(), transport.size(), at, std::min(kBlock, end - at), args.y + at);
      }
    });
    return Status::Ok();
  };
  return transport.Share(call, {&window, 1}, Access::kPeersRead, sum);
}

Status GatherOverRanks(const GatherOverRanksArgs& args, const Call& call, Transport& transport) {
  return transport.AllGather(call, args.mine, args.bytes, args.all);
}

}  // namespace anabranch
