// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_TREE_ADD_TREE_ADD_H_
#define ANABRANCH_OPS_TREE_ADD_TREE_ADD_H_

#include "base/context.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {

// One pairwise sum of the tree of tile/tree_block.h, when its halves are arrays: sum = a + b.
//   a, b, sum  f32, any shape, all the same
//   In place   sum may be the array of a or of b; other overlaps are not allowed.
//   Numerics   one f32 addition an element, subnormal numbers included, as inside of a tile. XLA's
//              own addition flushes them, so that a sum would depend on who added.
//   Memory     allocates nothing, needs no scratch.
//   Errors     kInvalidArgument (shapes, types). The result is untouched on error.
//   Threads    re-entrant; work is spread over context.executor.
struct TreeAddArgs {
  ConstTensorView a;
  ConstTensorView b;
  TensorView sum;
};
Status TreeAdd(const TreeAddArgs& args, Context& context);

}  // namespace anabranch

#endif  // ANABRANCH_OPS_TREE_ADD_TREE_ADD_H_
