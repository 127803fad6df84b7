// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_YARDSTICK_H_
#define ANABRANCH_TILE_YARDSTICK_H_

#include "base/dtype.h"
#include "base/executor.h"

// What this machine can do at most, measured now, in this process, on the executor's workers. Each
// takes about 0.1 s and reports the best of several rounds: a busy neighbour only ever lowers it.
namespace anabranch::tile {

// Multiply-adds (counted as two) in 1e9 per second, on registers alone, with the selected table.
double MeasurePeakGflops(DType dtype, Executor* executor);

// Bytes read plus bytes written, in 1e9 per second, by a copy far larger than the caches; 0 when
// there is no memory for it.
double MeasureCopyGbPerSecond(Executor* executor);

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_YARDSTICK_H_
