// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/adamw/adamw.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

constexpr int64_t kUnitBlocks = 16;  // 1 MiB of values

// Runs of values, and blocks of each of them.
struct Cut {
  explicit Cut(const SumOfSquaresArgs& args)
      : runs(args.sum.num_elements()),
        count(runs == 0 ? 0 : args.values.num_elements() / runs),
        blocks(CeilDiv(count, kSquareBlock)) {}
  int64_t runs, count, blocks;
};

}  // namespace

int64_t SumOfSquaresScratchBytes(const SumOfSquaresArgs& args) {
  const Cut cut(args);
  return cut.runs * cut.blocks * static_cast<int64_t>(sizeof(double));
}

Status SumOfSquares(const SumOfSquaresArgs& args, Context& context) {
  if (!args.values.has_value() || args.values.dtype() != DType::kF32 ||
      args.sum.dtype() != DType::kF32 || args.sum.rank() != 1 ||
      args.values.num_elements() % std::max<int64_t>(args.sum.size(0), 1) != 0) {
    return InvalidArgument("sum_of_squares: values is ", args.values.ToString(), " and sum ",
                           args.sum.ToString(), "; must be f32 and f32[P], equal runs of values");
  }
  const int64_t needed = SumOfSquaresScratchBytes(args);
  if (needed > 0 && (context.scratch == nullptr || needed > context.scratch_bytes)) {
    return InvalidArgument("sum_of_squares: scratch is ", context.scratch_bytes, " bytes; needs ",
                           needed);
  }
  const Cut cut(args);
  double* sums = static_cast<double*>(context.scratch);
  const int64_t blocks = cut.runs * cut.blocks;
  context.executor->ParallelFor(CeilDiv(blocks, kUnitBlocks), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * kUnitBlocks, blocks);
    for (int64_t block = unit * kUnitBlocks; block < end; ++block) {
      const int64_t first = block % cut.blocks * kSquareBlock;
      const float* run = args.values.as<float>() + block / cut.blocks * cut.count;
      sums[block] = tile::Kernels().optimizer.sum_of_squares(
          run + first, std::min(kSquareBlock, cut.count - first));
    }
  });
  for (int64_t run = 0; run < cut.runs; ++run) {
    double sum = 0;
    for (int64_t block = 0; block < cut.blocks; ++block) sum += sums[run * cut.blocks + block];
    args.sum.as<float>()[run] = static_cast<float>(sum);
  }
  return Status::Ok();
}

}  // namespace anabranch
