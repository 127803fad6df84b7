// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/collectives/collectives.h"

#include <algorithm>

#include "base/context.h"

namespace anabranch {
namespace {

// Elements of a unit of work: 256 KiB, well above the cost of handing it out.
constexpr int64_t kUnit = 1 << 16;

// The subtree of kRanks ranks, the first of which is at `from`.
template <int kRanks>
inline float Subtree(void* const* from, int64_t i) {
  if constexpr (kRanks == 1) {
    return static_cast<const float*>(*from)[i];
  } else {
    return Subtree<kRanks / 2>(from, i) + Subtree<kRanks / 2>(from + kRanks / 2, i);
  }
}

template <int kRanks>
void SumRange(void* const* from, int64_t begin, int64_t end, float* y) {
  for (int64_t i = begin; i < end; ++i) y[i] = Subtree<kRanks>(from, i);
}

using Sum = void (*)(void* const* from, int64_t begin, int64_t end, float* y);

Sum FindSum(int ranks) {
  switch (ranks) {
    case 1:
      return SumRange<1>;
    case 2:
      return SumRange<2>;
    case 4:
      return SumRange<4>;
    case 8:
      return SumRange<8>;
    case 16:
      return SumRange<16>;
    case 32:
      return SumRange<32>;
    case 64:
      return SumRange<64>;
    default:
      return nullptr;
  }
}

}  // namespace

Status SumOverRanks(const SumOverRanksArgs& args, const Call& call, Transport& transport,
                    Executor& executor) {
  const Sum sum = FindSum(transport.size());
  if (sum == nullptr) {
    return MakeStatus(StatusCode::kUnimplemented, call.operation, ": ", transport.size(),
                      " ranks; must be a power of two up to 64");
  }
  const Window window = {const_cast<float*>(args.x),
                         args.count * static_cast<int64_t>(sizeof(float))};
  return transport.Share(call, {&window, 1}, Access::kPeersRead, [&](void* const* peers) {
    executor.ParallelFor(CeilDiv(args.count, kUnit), [&](int64_t unit, int) {
      sum(peers, unit * kUnit, std::min(args.count, (unit + 1) * kUnit), args.y);
    });
    return Status::Ok();
  });
}

Status GatherOverRanks(const GatherOverRanksArgs& args, const Call& call, Transport& transport) {
  return transport.AllGather(call, args.mine, args.bytes, args.all);
}

}  // namespace anabranch
