// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_YARDSTICK_H_
#define ANABRANCH_TILE_YARDSTICK_H_

#include "base/dtype.h"
#include "base/executor.h"
#include "tile/coded/coded.h"

// What this machine can do at most, measured now, in this process, on the executor's workers. Each
// takes about 0.1 s and reports the best of several rounds: a busy neighbour only ever lowers it.
namespace anabranch::tile {

// Multiply-adds (counted as two) in 1e9 per second, on registers alone, with the selected table.
double MeasurePeakGflops(DType dtype, Executor* executor);

// Bytes read plus bytes written, in 1e9 per second, by a copy far larger than the caches; 0 when
// there is no memory for it.
double MeasureCopyGbPerSecond(Executor* executor);

// The same with stores past the caches, which do not read what they overwrite: the most that a copy
// reaches.
double MeasureStreamGbPerSecond(Executor* executor);

// The seconds of one such copy of `bytes` bytes, which do not overlap: to take turns with what it
// is compared with, where a machine's memory is not equally fast for long.
double TimeStreamCopy(const void* from, void* to, int64_t bytes, Executor* executor);

// Multiplies a [M,K] by b [K,N] (row-major, type bf16 or f32; K even for bf16) into out [M,N] f32,
// N and 16 permitting whole vectors (N % 16 == 0), with b packed beforehand and the panels spread
// over the executor. Runs `rounds` times and writes each run's seconds, packing not included: what
// the product reaches when its weights are in place.
void TimeTileProduct(const void* a, const void* b, float* out, int64_t m, int64_t n, int64_t k,
                     DType dtype, Executor* executor, int rounds, double* seconds);

// Packs all columns of the first k rows of `matrix` into panels [ceil(n / 64)][ceil(k / 2)][64] on
// this thread, `rounds` times, and writes each run's seconds.
void TimeCodedPacking(const CodedMatrix& matrix, int64_t k, int64_t n, uint32_t* panels, int rounds,
                      double* seconds);

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_YARDSTICK_H_
