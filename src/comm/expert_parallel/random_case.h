// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_EXPERT_PARALLEL_RANDOM_CASE_H_
#define ANABRANCH_COMM_EXPERT_PARALLEL_RANDOM_CASE_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "comm/expert_parallel/plan.h"

// For tests: a group and a routing of each of its ranks' tokens.
namespace anabranch::expert_parallel {

struct Shape {
  int64_t ranks = 2;
  int64_t num_experts = 8;
  int64_t topk = 2;
  int64_t max_tokens = 16;
  int64_t alignment = 1;
  bool even_table = true;
  // Share of the slots that are routed nowhere, and of the tokens that all go to experts 0..k-1.
  double nowhere = 0.0;
  double hot = 0.0;
};

class RandomCase {
 public:
  RandomCase(const Shape& shape, unsigned seed) : generator_(seed), table_(shape.num_experts) {
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      table_[e] = static_cast<int32_t>(shape.even_table
                                           ? EvenRankOfExpert(e, shape.num_experts, shape.ranks)
                                           : Draw(shape.ranks));
    }
    group_ = {.ranks = shape.ranks,
              .num_experts = shape.num_experts,
              .topk = shape.topk,
              .alignment = shape.alignment,
              .rank_of_expert = table_.data()};
    int64_t total = 0;
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
      const int64_t tokens = Draw(4) == 0 ? 0 : Draw(shape.max_tokens + 1);
      total += tokens;
      ids_.push_back(Route(shape, tokens));
      experts_.emplace_back(ids_.back().data(), std::initializer_list<int64_t>{tokens, shape.topk});
    }
    group_.capacity = WorstCapacity(total, shape.topk, MaxLocalExperts(group_), shape.alignment);
  }
  RandomCase(const RandomCase&) = delete;
  RandomCase& operator=(const RandomCase&) = delete;

  Group& group() { return group_; }
  const ConstTensorView* experts() const { return experts_.data(); }
  std::vector<int32_t>& ids(int64_t rank) { return ids_[rank]; }
  int64_t tokens(int64_t rank) const { return experts_[rank].size(0); }

  std::vector<int32_t> Counts() {
    std::vector<int32_t> counts(group_.ranks * group_.num_experts);
    for (int64_t rank = 0; rank < group_.ranks; ++rank) {
      for (const int32_t id : ids_[rank]) {
        if (id >= 0) ++counts[rank * group_.num_experts + id];
      }
    }
    return counts;
  }
  Status Fill(int64_t rank, std::vector<int32_t>* words) {
    const std::vector<int32_t> counts = Counts();
    words->assign(PlanWords(group_, tokens(rank)), -7);
    return FillPlan(group_, rank, experts_[rank],
                    ConstTensorView(counts.data(), {group_.ranks, group_.num_experts}),
                    TensorView(words->data(), {static_cast<int64_t>(words->size())}));
  }
  int64_t Draw(int64_t below) { return static_cast<int64_t>(generator_() % below); }

 private:
  std::vector<int32_t> Route(const Shape& shape, int64_t tokens) {
    std::vector<int32_t> ids;
    std::vector<int32_t> all(shape.num_experts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t token = 0; token < tokens; ++token) {
      std::sort(all.begin(), all.end());
      if (Uniform() >= shape.hot) std::shuffle(all.begin(), all.end(), generator_);
      for (int64_t j = 0; j < shape.topk; ++j) {
        ids.push_back(Uniform() < shape.nowhere ? -1 : all[j]);
      }
    }
    return ids;
  }
  double Uniform() { return static_cast<double>(generator_()) / 4294967296.0; }

  std::mt19937 generator_;
  std::vector<int32_t> table_;
  Group group_;
  std::vector<std::vector<int32_t>> ids_;
  std::vector<ConstTensorView> experts_;
};

}  // namespace anabranch::expert_parallel

#endif  // ANABRANCH_COMM_EXPERT_PARALLEL_RANDOM_CASE_H_
