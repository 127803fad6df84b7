// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Rows are independent but for the weight's gradient: a unit of work of the backward pass is a run
// of rows, whose part of it goes to scratch and is added afterwards in a fixed order.
#include "ops/rms_norm/rms_norm.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tile/tile.h"
#include "tile/tree_block.h"

namespace anabranch {
namespace {

// 64 rows of 512 in f32 and bf16 are 0.3 MiB to move: some 20 us.
constexpr int64_t kForwardRows = 64;
// Columns of one unit of the sum over runs: the leaves' sums of them stay in the first cache.
constexpr int64_t kSumColumns = 256;

Status Check(const char* op, const char* name, const ConstTensorView& view, bool fits,
             const char* rule) {
  if (view.has_value() && fits) return Status::Ok();
  return InvalidArgument(op, ": ", name, " is ", view.ToString(), "; must be ", rule);
}

bool IsRowType(const ConstTensorView& view) {
  return view.dtype() == DType::kF32 || view.dtype() == DType::kBF16;
}

// Checks against x [T, H]; absent views pass where they are optional.
class Checker {
 public:
  Checker(const char* op, const ConstTensorView& x) : op_(op), x_(x) {
    status_ = Check(op, "x", x, x.rank() == 2 && IsRowType(x) && x.size(1) > 0,
                    "f32 or bf16 [T, H], H > 0");
  }
  void Rows(const char* name, const ConstTensorView& view, DType type) {
    Keep(name, view,
         x_.rank() == 2 && view.HasShape({x_.size(0), x_.size(1)}) && view.dtype() == type &&
             IsRowType(view),
         "of x's shape, in f32 or bf16 as its partner");
  }
  void OptionalRows(const char* name, const ConstTensorView& view, DType type) {
    if (view.has_value()) Rows(name, view, type);
  }
  void Vector(const char* name, const ConstTensorView& view, int axis) {
    Keep(name, view,
         x_.rank() == 2 && view.HasShape({x_.size(axis)}) && view.dtype() == DType::kF32,
         axis == 0 ? "f32 [T]" : "f32 [H]");
  }
  const Status& status() const { return status_; }

 private:
  void Keep(const char* name, const ConstTensorView& view, bool fits, const char* rule) {
    if (status_.ok()) status_ = Check(op_, name, view, fits, rule);
  }
  const char* const op_;
  const ConstTensorView& x_;
  Status status_;
};

Status Validate(const RmsNormArgs& args) {
  Checker check("rms_norm", args.x);
  check.Rows("y", args.y, args.y.dtype());
  check.OptionalRows("branch", args.branch, args.y.dtype());
  check.OptionalRows("sum", args.sum, args.x.dtype());
  check.Vector("weight", args.weight, 1);
  check.Vector("inverse", args.inverse, 0);
  ANABRANCH_RETURN_IF_ERROR(check.status());
  if (args.branch.has_value() == args.sum.has_value()) return Status::Ok();
  return InvalidArgument("rms_norm: branch is ", args.branch.ToString(), " and sum ",
                         args.sum.ToString(), "; one comes with the other");
}

Status Validate(const RmsNormGradArgs& args) {
  Checker check("rms_norm_grad", args.x);
  check.Rows("y_grad", args.y_grad, args.y_grad.dtype());
  check.OptionalRows("sum_grad", args.sum_grad, args.x.dtype());
  check.Rows("x_grad", args.x_grad, args.x.dtype());
  check.OptionalRows("branch_grad", args.branch_grad, args.y_grad.dtype());
  check.Vector("weight", args.weight, 1);
  check.Vector("inverse", args.inverse, 0);
  check.Vector("weight_grad", args.weight_grad, 1);
  ANABRANCH_RETURN_IF_ERROR(check.status());
  if (tile::IsLeafCount(args.num_leaves)) return Status::Ok();
  return InvalidArgument("rms_norm_grad: num_leaves is ", args.num_leaves,
                         "; must be a power of two, at most ", tile::kMaxLeaves);
}

const tile::NormKernels& KernelsFor(const ConstTensorView& x, const ConstTensorView& y) {
  return tile::Kernels().norm(x.dtype(), y.dtype());
}

// Row `row` of a [T, H] view; null when it is absent.
template <bool kConst>
auto* RowAt(const BasicTensorView<kConst>& view, int64_t row) {
  using Bytes = std::conditional_t<kConst, const std::byte, std::byte>;
  if (!view.has_value()) return static_cast<Bytes*>(nullptr);
  return static_cast<Bytes*>(view.data()) + row * view.size(1) * SizeOf(view.dtype());
}

// Runs of at most kNormRunRows rows, none of which crosses the border of a leaf.
class Runs {
 public:
  Runs(int64_t rows, int leaves) : rows_(rows), leaves_(leaves) {
    // Leaves differ by one row at most: room for the larger ones.
    per_leaf_ = CeilDiv(CeilDiv(rows, leaves), kNormRunRows);
  }
  int64_t count() const { return per_leaf_ * leaves_; }
  int64_t per_leaf() const { return per_leaf_; }
  int64_t begin(int64_t run) const { return Border(run / per_leaf_, run % per_leaf_); }
  int64_t end(int64_t run) const { return Border(run / per_leaf_, run % per_leaf_ + 1); }

 private:
  int64_t Border(int64_t leaf, int64_t index) const {
    const int first = static_cast<int>(leaf);
    return std::min(tile::LeafBegin(rows_, leaves_, first) + index * kNormRunRows,
                    tile::LeafBegin(rows_, leaves_, first + 1));
  }
  int64_t rows_;
  int leaves_;
  int64_t per_leaf_;
};

// Adds the runs' parts [runs, H], in place, and writes columns first ... end - 1 of the gradient.
void SumRuns(float* parts, const Runs& runs, int leaves, int64_t columns, int64_t first,
             int64_t end, float* weight_grad) {
  const auto add = [&](int64_t to, int64_t from) {
    for (int64_t c = first; c < end; ++c) parts[to * columns + c] += parts[from * columns + c];
  };
  const int64_t per_leaf = runs.per_leaf();
  for (int leaf = 0; leaf < leaves; ++leaf) {
    for (int64_t i = 1; i < per_leaf; ++i) add(leaf * per_leaf, leaf * per_leaf + i);
  }
  for (int distance = 1; distance < leaves; distance *= 2) {
    for (int leaf = 0; leaf < leaves; leaf += 2 * distance) {
      add(leaf * per_leaf, (leaf + distance) * per_leaf);
    }
  }
  std::copy(parts + first, parts + end, weight_grad + first);
}

}  // namespace

Status RmsNorm(const RmsNormArgs& args, Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Validate(args));
  const int64_t rows = args.x.size(0);
  const auto forward = KernelsFor(args.x, args.y).forward;
  context.executor->ParallelFor(CeilDiv(rows, kForwardRows), [&](int64_t unit, int) {
    const int64_t end = std::min((unit + 1) * kForwardRows, rows);
    for (int64_t t = unit * kForwardRows; t < end; ++t) {
      args.inverse.as<float>()[t] =
          forward({args.x.size(1), args.epsilon, RowAt(args.x, t), RowAt(args.branch, t),
                   args.weight.as<float>(), RowAt(args.sum, t), RowAt(args.y, t)});
    }
  });
  return Status::Ok();
}

int64_t RmsNormGradScratchBytes(const RmsNormGradArgs& args) {
  if (args.x.rank() != 2 || !tile::IsLeafCount(args.num_leaves)) return 0;  // refused later
  const Runs runs(args.x.size(0), static_cast<int>(args.num_leaves));
  return runs.count() * args.x.size(1) * static_cast<int64_t>(sizeof(float));
}

Status RmsNormGrad(const RmsNormGradArgs& args, Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Validate(args));
  const int64_t needed = RmsNormGradScratchBytes(args);
  if (needed > 0 && (context.scratch == nullptr || needed > context.scratch_bytes)) {
    return MakeStatus(StatusCode::kResourceExhausted, "rms_norm_grad: scratch is ",
                      context.scratch_bytes, " bytes; needs ", needed);
  }
  const int leaves = static_cast<int>(args.num_leaves);
  const int64_t columns = args.x.size(1);
  float* weight_grad = args.weight_grad.as<float>();
  if (args.x.size(0) == 0) {
    std::fill_n(weight_grad, columns, 0.0f);
    return Status::Ok();
  }
  const Runs runs(args.x.size(0), leaves);
  float* parts = static_cast<float*>(context.scratch);
  const auto backward = KernelsFor(args.x, args.y_grad).backward;
  context.executor->ParallelFor(runs.count(), [&](int64_t run, int) {
    float* part = parts + run * columns;
    std::fill_n(part, columns, 0.0f);
    for (int64_t t = runs.begin(run); t < runs.end(run); ++t) {
      backward({columns, args.inverse.as<float>()[t], RowAt(args.x, t), args.weight.as<float>(),
                RowAt(args.y_grad, t), RowAt(args.sum_grad, t), RowAt(args.x_grad, t),
                RowAt(args.branch_grad, t), part});
    }
  });
  context.executor->ParallelFor(CeilDiv(columns, kSumColumns), [&](int64_t unit, int) {
    SumRuns(parts, runs, leaves, columns, unit * kSumColumns,
            std::min((unit + 1) * kSumColumns, columns), weight_grad);
  });
  return Status::Ok();
}

}  // namespace anabranch
