// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// How evenly the fused expert layer's work spreads over 2 to 96 workers, by simulation: units are
// handed out in order to whoever is free, as the executors do, and cost the multiplications they
// do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <queue>
#include <string>
#include <vector>

#include "ops/moe_ffn/layout.h"
#include "ops/moe_ffn/token_sum.h"
#include "tile/tile.h"

namespace anabranch::moe_ffn {
namespace {

struct Shape {
  const char* name;
  int64_t tokens, hidden, width, experts, k;
};
constexpr Shape kShapes[] = {{"bench_190m", 2048, 512, 256, 64, 8},
                             {"moe_ffn_192_rows", 2048, 2048, 1408, 64, 6},
                             {"moe_ffn_48_rows", 512, 2048, 1408, 64, 6},
                             {"moe_ffn_small_experts", 2048, 512, 256, 256, 8},
                             {"crowded", 4096, 1024, 512, 8, 2}};

// Zipf-1 popularity, no token twice to one expert: loads of rank r proportional to 1 / (r + 1), cut
// at one row a token; what is cut goes to the next ranks.
std::vector<int64_t> ZipfLoads(const Shape& shape) {
  std::vector<int64_t> loads(shape.experts);
  int64_t left = shape.tokens * shape.k;
  double mass = 0;
  for (int64_t r = 0; r < shape.experts; ++r) mass += 1.0 / static_cast<double>(r + 1);
  for (int64_t r = 0; r < shape.experts; ++r) {
    const double share = 1.0 / static_cast<double>(r + 1) / mass;
    loads[r] = std::min({left, shape.tokens, std::lround(share * static_cast<double>(left))});
    left -= loads[r];
    mass -= 1.0 / static_cast<double>(r + 1);
  }
  return loads;
}

// When the last worker ends when units are taken in order, each by the first free worker.
double Makespan(const std::vector<double>& units, int workers) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int w = 0; w < workers; ++w) free.push(0);
  double last = 0;
  for (double unit : units) {
    const double end = free.top() + unit;
    free.pop();
    free.push(end);
    last = std::max(last, end);
  }
  return last;
}

double Total(const std::vector<double>& units) {
  return std::accumulate(units.begin(), units.end(), 0.0);
}

// No assignment ends before: a worker's mean share, the largest unit, and, since of the W + 1
// largest two share a worker, the W-th and the next.
double LowerBound(std::vector<double> units, size_t workers) {
  std::sort(units.rbegin(), units.rend());
  double bound = std::max(Total(units) / static_cast<double>(workers), units.front());
  if (units.size() > workers) bound = std::max(bound, units[workers - 1] + units[workers]);
  return bound;
}

Sizes SizesOfShape(const Shape& shape) {
  Sizes sizes{};
  sizes.type = DType::kBF16;
  sizes.tokens = shape.tokens;
  sizes.hidden = shape.hidden;
  sizes.width = shape.width;
  sizes.experts = shape.experts;
  sizes.k = shape.k;
  sizes.capacity = sizes.rows = shape.tokens * shape.k;
  return sizes;
}

// The units of MakeUnits in their order: rows times one panel, in rows.
std::vector<double> ProductUnits(const Shape& shape, int64_t panels) {
  const Sizes sizes = SizesOfShape(shape);
  const std::vector<int64_t> loads = ZipfLoads(shape);
  std::vector<int32_t> offsets(shape.experts + 1), order(shape.experts);
  for (int64_t e = 0; e < shape.experts; ++e) {
    offsets[e + 1] = offsets[e] + static_cast<int32_t>(loads[e]);
    order[e] = static_cast<int32_t>(e);
  }
  // As FillRows orders them.
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return loads[a] != loads[b] ? loads[a] > loads[b] : a < b;
  });
  Rows rows{};
  rows.offsets = offsets.data();
  rows.expert_order = order.data();
  std::vector<Unit> units(MaxUnits(sizes, panels));
  units.resize(MakeUnits(sizes, rows, panels, units.data()));
  std::vector<double> costs;
  for (const Unit& unit : units) costs.push_back(static_cast<double>(unit.rows));
  return costs;
}

TEST(MoeFfnSchedule, ZipfLoadsAreSkewedAndComplete) {
  for (const Shape& shape : kShapes) {
    const std::vector<int64_t> loads = ZipfLoads(shape);
    EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), int64_t{0}), shape.tokens * shape.k);
    EXPECT_LE(loads.front(), shape.tokens) << shape.name;
    EXPECT_GE(loads.front() * shape.experts, 3 * shape.tokens * shape.k / 2) << shape.name;
  }
}

// Gate and up side by side take 2 F columns, the gradient of hidden F.
std::vector<int64_t> PanelCounts(const Shape& shape) {
  return {CeilDiv(2 * shape.width, tile::kPanelColumns), CeilDiv(shape.width, tile::kPanelColumns)};
}

// Experts come by rows, so units nearly descend. With units that do, taking them in order ends
// within 4/3 - 1 / (3 W) of the best assignment (Graham 1969), and that is no shorter than a
// worker's mean share or the largest unit. A cut of at most kUnitRows may put a smaller unit of a
// crowded expert before a larger one of the next: by Graham 1966 no order ends later than the
// second bound.
TEST(MoeFfnSchedule, ProductsOfCrowdedExpertsSpreadOverWorkers) {
  for (const Shape& shape : kShapes) {
    for (int64_t panels : PanelCounts(shape)) {
      const std::vector<double> units = ProductUnits(shape, panels);
      ASSERT_EQ(Total(units), static_cast<double>(shape.tokens * shape.k * panels)) << shape.name;
      const double largest = *std::max_element(units.begin(), units.end());
      ASSERT_LE(largest, static_cast<double>(kUnitRows)) << shape.name;
      for (int workers = 2; workers <= 96; ++workers) {
        const double mean = Total(units) / workers;
        const double last = Makespan(units, workers);
        const double best = LowerBound(units, workers);
        EXPECT_LE(last, (4.0 / 3 - 1.0 / (3 * workers)) * best) << shape.name << " " << workers;
        EXPECT_LE(last, mean + (1 - 1.0 / workers) * kUnitRows) << shape.name << " " << workers;
      }
    }
  }
}

// The cut promises workers that are busy at least 90 % of the time, were all blocks of tokens
// equal; they differ by one token at most. Every token costs its k rows, whatever the routing.
TEST(MoeFfnSchedule, TokenSumsKeepWorkersBusy) {
  for (const Shape& shape : kShapes) {
    const int64_t panels = CeilDiv(shape.hidden, tile::kPanelColumns);
    for (int workers = 2; workers <= 96; ++workers) {
      const auto [slabs, blocks] = CutTokenSum(shape.tokens, shape.hidden, workers);
      ASSERT_LE(CeilDiv(shape.tokens, blocks), kTokenBlock) << shape.name << " " << workers;
      ASSERT_LE(CeilDiv(panels, slabs), kSlabPanels) << shape.name << " " << workers;
      std::vector<double> units;
      for (int64_t unit = 0; unit < slabs * blocks; ++unit) {
        const int64_t block = unit / slabs, slab = unit % slabs;
        const int64_t rows = shape.tokens * (block + 1) / blocks - shape.tokens * block / blocks;
        const int64_t width = panels * (slab + 1) / slabs - panels * slab / slabs;
        units.push_back(static_cast<double>(rows * width));
      }
      ASSERT_EQ(Total(units), static_cast<double>(shape.tokens * panels)) << shape.name;
      const double uneven = static_cast<double>(CeilDiv(shape.tokens, blocks) * blocks) /
                            static_cast<double>(shape.tokens);
      EXPECT_LE(Makespan(units, workers), Total(units) / workers / 0.9 * uneven)
          << shape.name << " " << workers << " workers, " << slabs << " slabs, " << blocks;
    }
  }
}

}  // namespace
}  // namespace anabranch::moe_ffn
