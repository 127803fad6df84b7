// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_GROUPED_GEMM_SCHEDULE_H_
#define ANABRANCH_OPS_GROUPED_GEMM_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/context.h"
#include "ops/grouped_gemm/arguments.h"

namespace anabranch {

// Which group a unit of work belongs to. Every group is cut into units of equal size; large groups
// come first, so that the last units to finish are small ones.
class Schedule {
 public:
  // Takes 3 E + 2 integers from the arena.
  Schedule(ScratchArena* arena, int64_t num_groups)
      : num_groups_(num_groups),
        offsets_(arena->Take<int64_t>(num_groups + 1)),
        order_(arena->Take<int64_t>(num_groups)),
        unit_begin_(arena->Take<int64_t>(num_groups + 1)) {}

  // units_of(rows of a group) is the number of units that such a group is cut into.
  template <typename UnitsOf>
  void Fill(const GroupedGemmProblem& problem, const UnitsOf& units_of) {
    offsets_[0] = 0;
    for (int64_t g = 0; g < num_groups_; ++g)
      offsets_[g + 1] = offsets_[g] + problem.group_sizes[g];
    std::iota(order_, order_ + num_groups_, int64_t{0});
    std::sort(order_, order_ + num_groups_,
              [&](int64_t a, int64_t b) { return rows(a) != rows(b) ? rows(a) > rows(b) : a < b; });
    unit_begin_[0] = 0;
    for (int64_t i = 0; i < num_groups_; ++i) {
      unit_begin_[i + 1] = unit_begin_[i] + units_of(rows(order_[i]));
    }
  }

  int64_t num_units() const { return unit_begin_[num_groups_]; }
  int64_t first_row(int64_t group) const { return offsets_[group]; }
  int64_t rows(int64_t group) const { return offsets_[group + 1] - offsets_[group]; }

  struct Unit {
    int64_t group;
    int64_t index;  // among the group's units
  };
  Unit At(int64_t unit) const {
    const int64_t* next = std::upper_bound(unit_begin_, unit_begin_ + num_groups_ + 1, unit);
    const int64_t place = next - unit_begin_ - 1;
    return {order_[place], unit - unit_begin_[place]};
  }

 private:
  int64_t num_groups_;
  int64_t* offsets_;
  int64_t* order_;
  int64_t* unit_begin_;
};

// The half-open range of part `index` when `size` is cut into `parts` equal parts whose borders are
// multiples of `step`.
struct Range {
  int64_t begin;
  int64_t end;
};
constexpr Range PartOf(int64_t size, int64_t parts, int64_t index, int64_t step) {
  const int64_t steps = CeilDiv(size, step);
  return {std::min(steps * index / parts * step, size),
          std::min(steps * (index + 1) / parts * step, size)};
}

// Units per worker at which the last ones to finish cost little: at 8 of equal size, 2 workers idle
// at most 1/16 of the time.
inline constexpr int64_t kUnitsPerWorker = 8;

}  // namespace anabranch

#endif  // ANABRANCH_OPS_GROUPED_GEMM_SCHEDULE_H_
