// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/plan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/context.h"

namespace anabranch::expert_parallel {
namespace {

constexpr int32_t kMagic = 0x41425031;  // "ABP1"
enum Word {
  kMagicWord,
  kChecksumLow,
  kChecksumHigh,
  kRanks,
  kRank,
  kNumExperts,
  kTopk,
  kTokens,
  kLocalExperts,
  kCapacity,
  kDropped,
  kNeeded,
  kHeaderWords = 16
};

// Where the parts of a plan begin.
struct Layout {
  int64_t counts, slot_rank, slot_row, slot_order, group_sizes, all_group_offsets, end;
};

Layout LayOut(int64_t ranks, int64_t num_experts, int64_t slots, int64_t local_experts) {
  Layout at{};
  at.counts = kHeaderWords;
  at.slot_rank = at.counts + ranks * num_experts;
  at.slot_row = at.slot_rank + slots;
  at.slot_order = at.slot_row + slots;
  at.group_sizes = at.slot_order + slots;
  at.all_group_offsets = at.group_sizes + local_experts;
  at.end = at.all_group_offsets + ranks * (local_experts + 1);
  return at;
}

// Of everything but the checksum itself. Four chains, so that it costs less than reading the plan.
uint64_t Checksum(const int32_t* words, int64_t count) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  uint64_t chain[4] = {1, 2, 3, 4};
  const auto mix = [&](int64_t index) {
    uint64_t& hash = chain[index & 3];
    hash = (hash ^ static_cast<uint32_t>(words[index])) * kMultiplier;
    hash ^= hash >> 29;
  };
  mix(0);
  for (int64_t index = kRanks; index < count; ++index) mix(index);
  return ((chain[0] * kMultiplier ^ chain[1]) * kMultiplier ^ chain[2]) * kMultiplier ^ chain[3];
}

Status ValidateGroup(const Group& group) {
  const struct {
    const char* name;
    int64_t value, least;
  } sizes[] = {{"ranks", group.ranks, 1},
               {"num_experts", group.num_experts, 1},
               {"topk", group.topk, 0},
               {"alignment", group.alignment, 1},
               {"capacity", group.capacity, 0}};
  for (const auto& size : sizes) {
    if (size.value < size.least || size.value > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("expert_parallel: ", size.name, "=", size.value, "; must be in [",
                             size.least, ", 2^31)");
    }
  }
  for (int64_t expert = 0; expert < group.num_experts; ++expert) {
    const int64_t rank = group.rank_of_expert[expert];
    if (rank < 0 || rank >= group.ranks) {
      return InvalidArgument("expert_parallel: rank_of_expert[", expert, "]=", rank,
                             "; must be in [0, ", group.ranks, ")");
    }
  }
  return Status::Ok();
}

Status ValidateExperts(const Group& group, const ConstTensorView& experts) {
  if (experts.rank() != 2 || experts.dtype() != DType::kI32 || experts.size(1) != group.topk) {
    return InvalidArgument("expert_parallel: experts is ", experts.ToString(), "; must be i32[T,",
                           group.topk, "]");
  }
  return Status::Ok();
}

int64_t AlignUp(int64_t rows, int64_t alignment) { return CeilDiv(rows, alignment) * alignment; }

// Per expert: rows of all ranks, the first of them in the owner's buffer, the owner's group.
struct Placement {
  std::vector<int64_t> rows, first_row, group;
  std::vector<int64_t> needed;  // by rank
};

Placement Place(const Group& group, const int32_t* counts) {
  Placement place;
  place.rows.assign(group.num_experts, 0);
  place.first_row.assign(group.num_experts, 0);
  place.group.assign(group.num_experts, 0);
  place.needed.assign(group.ranks, 0);
  std::vector<int64_t> groups(group.ranks, 0);
  for (int64_t rank = 0; rank < group.ranks; ++rank) {
    for (int64_t expert = 0; expert < group.num_experts; ++expert) {
      place.rows[expert] += counts[rank * group.num_experts + expert];
    }
  }
  for (int64_t expert = 0; expert < group.num_experts; ++expert) {
    const int64_t owner = group.rank_of_expert[expert];
    place.group[expert] = groups[owner]++;
    place.first_row[expert] = place.needed[owner];
    place.needed[owner] += AlignUp(place.rows[expert], group.alignment);
  }
  return place;
}

// The rank's token slots: owner, row and order. Returns the slots left out, or -1 when the counts
// are not those of experts.
int64_t FillSlots(const Group& group, int64_t rank, int64_t capacity, const Placement& place,
                  const ConstTensorView& experts, const Layout& at_word, int32_t* words) {
  const int32_t* counts = words + at_word.counts;
  int32_t* slot_rank = words + at_word.slot_rank;
  int32_t* slot_row = words + at_word.slot_row;
  int32_t* slot_order = words + at_word.slot_order;
  std::vector<int64_t> next(place.first_row);
  std::vector<int64_t> end(group.num_experts);
  for (int64_t expert = 0; expert < group.num_experts; ++expert) {
    for (int64_t source = 0; source < rank; ++source) {
      next[expert] += counts[source * group.num_experts + expert];
    }
    end[expert] = next[expert] + counts[rank * group.num_experts + expert];
  }
  int64_t dropped = 0;
  for (int64_t token = 0; token < experts.size(0); ++token) {
    const int64_t first = token * group.topk;
    const int32_t* ids = experts.as<int32_t>() + first;
    for (int64_t j = 0; j < group.topk; ++j) {
      int64_t at = j;  // insertion sort: stable, -1 first
      for (; at > 0 && ids[slot_order[first + at - 1]] > ids[j]; --at) {
        slot_order[first + at] = slot_order[first + at - 1];
      }
      slot_order[first + at] = static_cast<int32_t>(j);
      slot_rank[first + j] = slot_row[first + j] = -1;
      if (ids[j] < 0) continue;
      const int64_t row = next[ids[j]]++;
      if (row >= end[ids[j]]) return -1;
      if (row >= capacity) {
        ++dropped;
        continue;
      }
      slot_rank[first + j] = group.rank_of_expert[ids[j]];
      slot_row[first + j] = static_cast<int32_t>(row);
    }
  }
  return next == end ? dropped : -1;
}

// sizes [L] of the rank's groups, offsets [ranks, L+1] of all.
void FillGroups(const Group& group, int64_t rank, int64_t capacity, const Placement& place,
                int64_t local_experts, int32_t* sizes, int32_t* offsets) {
  std::fill_n(sizes, local_experts, 0);
  for (int64_t owner = 0; owner < group.ranks; ++owner) {
    std::fill_n(offsets + owner * (local_experts + 1), local_experts + 1,
                static_cast<int32_t>(std::min(capacity, place.needed[owner])));
  }
  for (int64_t expert = 0; expert < group.num_experts; ++expert) {
    const int64_t owner = group.rank_of_expert[expert];
    const int64_t first = std::min(place.first_row[expert], capacity);
    const int64_t last = std::min(place.first_row[expert] + place.rows[expert], capacity);
    offsets[owner * (local_experts + 1) + place.group[expert]] = static_cast<int32_t>(first);
    if (owner == rank) sizes[place.group[expert]] = static_cast<int32_t>(last - first);
  }
}

}  // namespace

int64_t MaxLocalExperts(const Group& group) {
  std::vector<int64_t> owned(group.ranks, 0);
  int64_t most = 0;
  for (int64_t expert = 0; expert < group.num_experts; ++expert) {
    most = std::max(most, ++owned[group.rank_of_expert[expert]]);
  }
  return most;
}

int64_t WorstCapacity(int64_t tokens, int64_t topk, int64_t local_experts, int64_t alignment) {
  // A token sends a rank at most min(topk, L) rows, and an expert at most one. Every expert's first
  // row claims a whole block of `alignment` rows, and so does each further `alignment` rows; no
  // expert has more than ceil(tokens / alignment) blocks.
  const int64_t rows = tokens * std::min(topk, local_experts);
  const int64_t blocks =
      rows <= local_experts ? rows : local_experts + (rows - local_experts) / alignment;
  return alignment * std::min(blocks, local_experts * CeilDiv(tokens, alignment));
}

int64_t PlanWords(const Group& group, int64_t tokens) {
  return LayOut(group.ranks, group.num_experts, tokens * group.topk, MaxLocalExperts(group)).end;
}

Status CountSlots(const Group& group, ConstTensorView experts, int32_t* counts) {
  ANABRANCH_RETURN_IF_ERROR(ValidateGroup(group));
  ANABRANCH_RETURN_IF_ERROR(ValidateExperts(group, experts));
  std::fill_n(counts, group.num_experts, 0);
  std::vector<int64_t> last_token(group.num_experts, -1);
  const int32_t* ids = experts.as<int32_t>();
  for (int64_t slot = 0; slot < experts.num_elements(); ++slot) {
    const int64_t token = slot / group.topk;
    const int64_t id = ids[slot];
    if (id < -1 || id >= group.num_experts) {
      return OutOfRange("expert_parallel: experts[token=", token, ", slot=", slot % group.topk,
                        "]=", id, " is out of range; an id must be -1 (routed nowhere) or in [0, ",
                        group.num_experts, ")");
    }
    if (id < 0) continue;
    if (last_token[id] == token) {
      return OutOfRange("expert_parallel: experts[token=", token, ", slot=", slot % group.topk,
                        "]=", id, " is a duplicate; a token's experts must differ");
    }
    last_token[id] = token;
    ++counts[id];
  }
  return Status::Ok();
}

Status FillPlan(const Group& group, int64_t rank, ConstTensorView experts, ConstTensorView counts,
                TensorView words) {
  ANABRANCH_RETURN_IF_ERROR(ValidateGroup(group));
  ANABRANCH_RETURN_IF_ERROR(ValidateExperts(group, experts));
  const int64_t tokens = experts.size(0);
  const int64_t local_experts = MaxLocalExperts(group);
  if (!counts.HasShape({group.ranks, group.num_experts}) || counts.dtype() != DType::kI32 ||
      !words.HasShape({PlanWords(group, tokens)}) || words.dtype() != DType::kI32) {
    return InvalidArgument("expert_parallel: counts is ", counts.ToString(), " and the plan ",
                           words.ToString(), "; must be i32[", group.ranks, ",", group.num_experts,
                           "] and i32[", PlanWords(group, tokens), "]");
  }
  const int32_t* all_counts = counts.as<int32_t>();
  const Placement place = Place(group, all_counts);
  const auto fullest = std::max_element(place.needed.begin(), place.needed.end());
  if (*fullest > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("expert_parallel: rank ", fullest - place.needed.begin(), " needs ",
                           *fullest, " rows; row numbers must fit in i32");
  }
  int64_t capacity = group.capacity;
  if (group.overflow == Overflow::kError && *fullest > capacity) {
    return MakeStatus(StatusCode::kResourceExhausted, "expert_parallel: rank ",
                      fullest - place.needed.begin(), " needs ", *fullest,
                      " rows but capacity=", capacity, " rows were given");
  }
  if (group.overflow == Overflow::kGrow) capacity = std::max(capacity, *fullest);

  int32_t* out = words.as<int32_t>();
  const Layout at = LayOut(group.ranks, group.num_experts, tokens * group.topk, local_experts);
  std::fill_n(out, static_cast<int64_t>(kHeaderWords), 0);
  std::memcpy(out + at.counts, all_counts, counts.num_elements() * sizeof(int32_t));
  const int64_t dropped = FillSlots(group, rank, capacity, place, experts, at, out);
  if (dropped < 0) {
    return InvalidArgument("expert_parallel: counts[rank=", rank,
                           "] are not those of the rank's experts");
  }
  FillGroups(group, rank, capacity, place, local_experts, out + at.group_sizes,
             out + at.all_group_offsets);
  const std::pair<Word, int64_t> header[] = {{kMagicWord, kMagic},
                                             {kRanks, group.ranks},
                                             {kRank, rank},
                                             {kTopk, group.topk},
                                             {kNumExperts, group.num_experts},
                                             {kTokens, tokens},
                                             {kCapacity, capacity},
                                             {kLocalExperts, local_experts},
                                             {kDropped, dropped},
                                             {kNeeded, *fullest}};
  for (const auto& [word, value] : header) out[word] = static_cast<int32_t>(value);
  const uint64_t checksum = Checksum(out, at.end);
  out[kChecksumLow] = static_cast<int32_t>(checksum);
  out[kChecksumHigh] = static_cast<int32_t>(checksum >> 32);
  return Status::Ok();
}

Status ReadPlan(ConstTensorView words, Plan* plan) {
  if (words.rank() != 1 || words.dtype() != DType::kI32 || words.size(0) < kHeaderWords) {
    return InvalidArgument("expert_parallel: the plan is ", words.ToString(),
                           "; must be i32[PlanWords]");
  }
  const int32_t* in = words.as<int32_t>();
  if (in[kMagicWord] != kMagic) return InvalidArgument("expert_parallel: this is no plan");
  plan->ranks = in[kRanks];
  plan->rank = in[kRank];
  plan->num_experts = in[kNumExperts];
  plan->topk = in[kTopk];
  plan->tokens = in[kTokens];
  plan->local_experts = in[kLocalExperts];
  plan->capacity = in[kCapacity];
  plan->dropped = in[kDropped];
  plan->needed = in[kNeeded];
  const int64_t size = words.size(0);
  const int64_t slots = plan->tokens * plan->topk;
  const int64_t counts = plan->ranks * plan->num_experts;
  const auto fits = [size](int64_t part) { return part >= 0 && part <= size; };
  if (!fits(slots) || !fits(counts) || !fits(plan->local_experts) || plan->rank < 0 ||
      plan->rank >= plan->ranks ||
      LayOut(plan->ranks, plan->num_experts, slots, plan->local_experts).end != size) {
    return InvalidArgument("expert_parallel: a plan of ", size,
                           " words describes itself as T=", plan->tokens, " k=", plan->topk,
                           " E=", plan->num_experts, " ranks=", plan->ranks);
  }
  const Layout at = LayOut(plan->ranks, plan->num_experts, slots, plan->local_experts);
  const uint64_t checksum = Checksum(in, at.end);
  if (in[kChecksumLow] != static_cast<int32_t>(checksum) ||
      in[kChecksumHigh] != static_cast<int32_t>(checksum >> 32)) {
    return InvalidArgument("expert_parallel: the plan was changed: its checksum does not fit");
  }
  plan->counts = in + at.counts;
  plan->slot_rank = in + at.slot_rank;
  plan->slot_row = in + at.slot_row;
  plan->slot_order = in + at.slot_order;
  plan->group_sizes = in + at.group_sizes;
  plan->all_group_offsets = in + at.all_group_offsets;
  plan->group_offsets = plan->all_group_offsets + plan->rank * (plan->local_experts + 1);
  plan->used_rows = plan->group_offsets[plan->local_experts];
  return Status::Ok();
}

}  // namespace anabranch::expert_parallel
