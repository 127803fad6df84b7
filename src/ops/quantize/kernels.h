// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_KERNELS_H_
#define ANABRANCH_OPS_QUANTIZE_KERNELS_H_

#include <cstdint>

#include "base/cpu_features.h"
#include "ops/quantize/quantize.h"

// What runs on one tile, in one file per instruction set round block_body.inc. All tables give the
// same bits.
namespace anabranch::quantize {

// A tile starts where blocks start and ends where they do, or at the end of its group or row: at
// most kTileRows x kTileColumns elements, multiples of every block size and of the random draws'
// period.
inline constexpr int64_t kTileRows = 128;
inline constexpr int64_t kTileColumns = 512;

// What QuantizeOptions say, worked out: kernels call no function of a header, because a copy of it
// compiled for their instruction set could end up in everybody's hands.
struct BlockPlan {
  int element;  // 0 E4M3, 1 E5M2, 2 E2M1
  ScaleKind scale;
  ScaleMode scale_mode;
  bool stochastic, strict;
  int64_t block_rows, block_columns;
};

// One tile of one group. Pitches are in elements.
struct TileRun {
  int64_t rows = 0, columns = 0;
  const void* x = nullptr;
  int64_t x_pitch = 0;
  bool x_is_bf16 = false;
  float encode = 1;  // NVFP4's S
  const uint32_t* key = nullptr;
  uint32_t first_row = 0, first_column = 0, group = 0;  // of the tile's first element, as drawn for
  // Codes and scales: written by quantize, read by dequantize.
  uint8_t* data = nullptr;
  int64_t data_pitch = 0;
  void* scale = nullptr;
  int64_t scale_pitch = 0;
  // Values: written by quantize_dequantize and dequantize; tensor_scale is a factor of the latter.
  void* out = nullptr;
  int64_t out_pitch = 0;
  bool out_is_bf16 = false;
  float tensor_scale = 1;
  double* statistics = nullptr;  // kQuantizeStatistics sums that the tile adds to, or null
};

struct Kernels {
  // The bits of the largest size in the tile; NaN, and with strict infinity, count as 0.
  uint32_t (*largest)(const BlockPlan& plan, const TileRun& run);
  void (*quantize)(const BlockPlan& plan, const TileRun& run);
  void (*quantize_dequantize)(const BlockPlan& plan, const TileRun& run);
  void (*dequantize)(const BlockPlan& plan, const TileRun& run);
  // out = transpose(H) x for up to 16 rows of x, to 16 rows of out (bf16).
  void (*hadamard)(const TileRun& run);
};

namespace generic {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

BlockPlan PlanBlocks(const QuantizeOptions& options);

// The table of an instruction set that this CPU supports. AVX-512 with and without bf16 share one.
const Kernels& FindKernels(Isa isa);

}  // namespace anabranch::quantize

#endif  // ANABRANCH_OPS_QUANTIZE_KERNELS_H_
