// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/tree_add/tree_add.h"

#include <algorithm>

namespace anabranch {
namespace {

constexpr int64_t kUnitElements = int64_t{1} << 16;  // 256 KiB of each array

}  // namespace

Status TreeAdd(const TreeAddArgs& args, Context& context) {
  const int64_t count = args.sum.num_elements();
  for (const ConstTensorView& view : {args.a, args.b, ConstTensorView(args.sum)}) {
    if (!view.has_value() || view.dtype() != DType::kF32 || view.num_elements() != count) {
      return InvalidArgument("tree_add: a is ", args.a.ToString(), ", b ", args.b.ToString(),
                             " and sum ", args.sum.ToString(), "; must be f32 of one shape");
    }
  }
  const float* a = args.a.as<float>();
  const float* b = args.b.as<float>();
  float* sum = args.sum.as<float>();
  context.executor->ParallelFor(CeilDiv(count, kUnitElements), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * kUnitElements, count);
    for (int64_t i = unit * kUnitElements; i < end; ++i) sum[i] = a[i] + b[i];
  });
  return Status::Ok();
}

}  // namespace anabranch
