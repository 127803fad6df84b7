// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_COLLECTIVES_COLLECTIVES_H_
#define ANABRANCH_COMM_COLLECTIVES_COLLECTIVES_H_

#include <cstdint>

#include "base/executor.h"
#include "base/status.h"
#include "comm/transport.h"

// What replicated values need between ranks: sums over a fixed tree, and gathers.
namespace anabranch {

// y[i] = the sum of all ranks' x[i] over a binary tree of neighbours: ((x0 + x1) + (x2 + x3)) + ...
// An odd number of ranks is split with the larger half first: (x0 + x1) + x2.
//   Aliasing  y and x do not overlap: peers read x while y is written.
//   Empty     count = 0 is normal.
//   Numerics  f32 additions in that order: every rank gets the same bits.
//   Memory    allocates nothing that grows with count.
//   Errors    the transport's.
//   Threads   collective; work is spread over the executor.
struct SumOverRanksArgs {
  const float* x = nullptr;
  float* y = nullptr;
  int64_t count = 0;
};
Status SumOverRanks(const SumOverRanksArgs& args, const Call& call, Transport& transport,
                    Executor& executor);

// all[r * bytes, (r + 1) * bytes) = rank r's mine. Errors and threads: the transport's.
struct GatherOverRanksArgs {
  const void* mine = nullptr;
  int64_t bytes = 0;
  void* all = nullptr;
};
Status GatherOverRanks(const GatherOverRanksArgs& args, const Call& call, Transport& transport);

}  // namespace anabranch

#endif  // ANABRANCH_COMM_COLLECTIVES_COLLECTIVES_H_
