// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_ENGINE_EDGE_LISTS_H_
#define ANABRANCH_SIM_ENGINE_EDGE_LISTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace anabranch::sim {

// Edges (before, after) by the task that they leave: those of task i lead to next[first[i]] up to,
// but without, next[first[i + 1]]; missing[i] edges enter it.
struct EdgeLists {
  std::vector<int32_t> first;
  std::vector<int32_t> next;
  std::vector<int32_t> missing;

  // Every end of `edges` is at least 0 and below `tasks`.
  EdgeLists(size_t tasks, const std::vector<std::pair<int32_t, int32_t>>& edges)
      : first(tasks + 1, 0), next(edges.size()), missing(tasks, 0) {
    for (const auto& [before, after] : edges) {
      ++first[before + 1];
      ++missing[after];
    }
    for (size_t i = 0; i < tasks; ++i) first[i + 1] += first[i];
    std::vector<int32_t> fill(first.begin(), first.end() - 1);
    for (const auto& [before, after] : edges) next[fill[before]++] = after;
  }
};

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_ENGINE_EDGE_LISTS_H_
