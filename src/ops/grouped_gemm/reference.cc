// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "base/element.h"
#include "ops/grouped_gemm/arguments.h"
#include "ops/grouped_gemm/grouped_gemm.h"

namespace anabranch {
namespace {

// An element as the product sees it: rounded to the multiplicand type, and an f32 like the sum.
float LoadAs(DType multiplicand, const ConstTensorView& view, int64_t index) {
  return static_cast<float>(Round(multiplicand, Load(view, index)));
}

// Calls row(r, g) for every row of every group, then row(r, -1) for the rows of none.
template <typename Row>
void ForEachRow(const GroupedGemmProblem& problem, const Row& row) {
  int64_t r = 0;
  for (int64_t g = 0; g < problem.num_groups; ++g) {
    for (int64_t end = r + problem.group_sizes[g]; r < end; ++r) row(r, g);
  }
  for (; r < problem.num_rows; ++r) row(r, int64_t{-1});
}

}  // namespace

Status GroupedGemmReference(const GroupedGemmArgs& args) {
  GroupedGemmProblem problem;
  ANABRANCH_RETURN_IF_ERROR(Validate(args, &problem));
  const int64_t k = problem.k;
  const int64_t n = problem.n;
  const DType type = problem.multiplicand;
  ForEachRow(problem, [&](int64_t r, int64_t g) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t i = 0; g >= 0 && i < k; ++i) {
        sum += LoadAs(type, args.x, r * k + i) * LoadAs(type, args.w, (g * k + i) * n + j);
      }
      Store(args.y, r * n + j, sum);
    }
  });
  return Status::Ok();
}

Status GroupedGemmDgradReference(const GroupedGemmDgradArgs& args) {
  GroupedGemmProblem problem;
  ANABRANCH_RETURN_IF_ERROR(Validate(args, &problem));
  const int64_t k = problem.k;
  const int64_t n = problem.n;
  const DType type = problem.multiplicand;
  ForEachRow(problem, [&](int64_t r, int64_t g) {
    for (int64_t i = 0; i < k; ++i) {
      float sum = 0;
      for (int64_t j = 0; g >= 0 && j < n; ++j) {
        sum += LoadAs(type, args.dy, r * n + j) * LoadAs(type, args.w, (g * k + i) * n + j);
      }
      Store(args.dx, r * k + i, sum);
    }
  });
  return Status::Ok();
}

Status GroupedGemmWgradReference(const GroupedGemmWgradArgs& args) {
  GroupedGemmProblem problem;
  ANABRANCH_RETURN_IF_ERROR(Validate(args, &problem));
  const int64_t k = problem.k;
  const int64_t n = problem.n;
  const DType type = problem.multiplicand;
  int64_t begin = 0;
  for (int64_t g = 0; g < problem.num_groups; ++g) {
    const int64_t end = begin + problem.group_sizes[g];
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t r = begin; r < end; ++r) {
          sum += LoadAs(type, args.x, r * k + i) * LoadAs(type, args.dy, r * n + j);
        }
        const float scale = args.scale.has_value() ? args.scale.as<float>()[g] : 1.0f;
        Store(args.dw, (g * k + i) * n + j, sum * scale);
      }
    }
    begin = end;
  }
  return Status::Ok();
}

}  // namespace anabranch
