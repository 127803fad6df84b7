// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/adamw/adamw.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

constexpr int64_t kUnitBlocks = 16;  // 1 MiB of values

}  // namespace

int64_t SumOfSquaresScratchBytes(const SumOfSquaresArgs& args) {
  return CeilDiv(args.values.num_elements(), kSquareBlock) * static_cast<int64_t>(sizeof(double));
}

Status SumOfSquares(const SumOfSquaresArgs& args, Context& context) {
  if (!args.values.has_value() || args.values.dtype() != DType::kF32 ||
      args.sum.dtype() != DType::kF32 || !args.sum.HasShape({1})) {
    return InvalidArgument("sum_of_squares: values is ", args.values.ToString(), " and sum ",
                           args.sum.ToString(), "; must be f32 and f32[1]");
  }
  const int64_t needed = SumOfSquaresScratchBytes(args);
  if (needed > 0 && (context.scratch == nullptr || needed > context.scratch_bytes)) {
    return InvalidArgument("sum_of_squares: scratch is ", context.scratch_bytes, " bytes; needs ",
                           needed);
  }
  const int64_t count = args.values.num_elements(), blocks = CeilDiv(count, kSquareBlock);
  double* sums = static_cast<double*>(context.scratch);
  context.executor->ParallelFor(CeilDiv(blocks, kUnitBlocks), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * kUnitBlocks, blocks);
    for (int64_t block = unit * kUnitBlocks; block < end; ++block) {
      const int64_t first = block * kSquareBlock;
      sums[block] = tile::Kernels().optimizer.sum_of_squares(args.values.as<float>() + first,
                                                             std::min(kSquareBlock, count - first));
    }
  });
  double sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
  args.sum.as<float>()[0] = static_cast<float>(sum);
  return Status::Ok();
}

}  // namespace anabranch
