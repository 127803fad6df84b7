// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"

#include <algorithm>
#include <cstring>

#include "tile/tile.h"

namespace anabranch {
namespace {

// Large enough that handing out units costs nothing (1.8 MiB move in some 100 us), small enough to
// share one parameter among the workers.
constexpr int64_t kUnitElements = 65536;

bool SameShape(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.rank() != b.rank()) return false;
  for (int axis = 0; axis < a.rank(); ++axis) {
    if (a.size(axis) != b.size(axis)) return false;
  }
  return true;
}

Status CheckArray(const char* name, const ConstTensorView& view, const ConstTensorView& parameter) {
  if (view.dtype() == DType::kF32 && view.has_value() && SameShape(view, parameter)) {
    return Status::Ok();
  }
  return InvalidArgument("adamw: ", name, " is ", view.ToString(), " and parameter ",
                         parameter.ToString(), "; both must be f32 of one shape");
}

Status Validate(const AdamwArgs& args) {
  if (args.scalars.dtype() != DType::kF32 || !args.scalars.HasShape({kAdamwScalars})) {
    return InvalidArgument("adamw: scalars is ", args.scalars.ToString(), "; must be f32[",
                           kAdamwScalars, "]");
  }
  const struct {
    const char* name;
    ConstTensorView view;
  } arrays[] = {{"parameter", args.parameter},
                {"gradient", args.gradient},
                {"m", args.m},
                {"v", args.v},
                {"new_m", args.new_m},
                {"new_v", args.new_v},
                {"new_parameter", args.new_parameter}};
  for (const auto& array : arrays) {
    ANABRANCH_RETURN_IF_ERROR(CheckArray(array.name, array.view, args.parameter));
  }
  return Status::Ok();
}

// Results of a skipped step, for one run.
void Keep(const tile::AdamwRun& run, bool emit_update) {
  const auto copy = [&](const float* from, float* to) {
    if (from != to) std::memcpy(to, from, run.count * sizeof(float));
  };
  copy(run.m, run.new_m);
  copy(run.v, run.new_v);
  if (emit_update) {
    std::fill_n(run.new_parameter, run.count, 0.0f);
  } else {
    copy(run.parameter, run.new_parameter);
  }
}

}  // namespace

Status Adamw(const AdamwArgs& args, Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Validate(args));
  tile::AdamwScalars scalars;
  std::memcpy(&scalars, args.scalars.data(), sizeof(scalars));
  const int64_t count = args.parameter.num_elements();
  const auto& kernels = tile::Kernels().optimizer;
  context.executor->ParallelFor(CeilDiv(count, kUnitElements), [&](int64_t unit, int) {
    const int64_t first = unit * kUnitElements;
    tile::AdamwRun run;
    run.count = std::min(kUnitElements, count - first);
    run.gradient = args.gradient.as<float>() + first;
    run.parameter = args.parameter.as<float>() + first;
    run.m = args.m.as<float>() + first;
    run.v = args.v.as<float>() + first;
    run.new_parameter = args.new_parameter.as<float>() + first;
    run.new_m = args.new_m.as<float>() + first;
    run.new_v = args.new_v.as<float>() + first;
    if (scalars.applied == 0) {
      Keep(run, args.emit_update);
    } else {
      kernels.adamw(scalars, run, args.emit_update);
    }
  });
  return Status::Ok();
}

}  // namespace anabranch
