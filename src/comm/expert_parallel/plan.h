// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_EXPERT_PARALLEL_PLAN_H_
#define ANABRANCH_COMM_EXPERT_PARALLEL_PLAN_H_

#include <cstdint>

#include "base/status.h"
#include "base/tensor_view.h"

// Where each routed slot's row lies when experts are spread over ranks.
//
// A rank's rows are ordered by (expert, source rank, token): every expert's rows are contiguous
// and, when ranks hold contiguous tokens, in global token order. Group g of a rank, its g-th expert
// in ascending order, begins at a multiple of the alignment; the rows between the end of a group
// and the beginning of the next are padding.
//
// The plan of a rank is an array of i32 words without pointers: it can be copied, saved and sent.
namespace anabranch::expert_parallel {

enum class Overflow {
  kError,  // a rank that needs more rows than its capacity is an error on every rank
  kGrow,   // the capacity of every rank becomes the largest number of rows that any rank needs
  kDrop,   // rows at and past the capacity are left out, and counted
};

// What all ranks of a group agree on. rank_of_expert[e] is the rank that owns expert e: any table
// will do, ranks may own no expert.
struct Group {
  int64_t ranks = 1;
  int64_t num_experts = 1;
  int64_t topk = 1;
  int64_t alignment = 1;  // rows; of each group's beginning
  int64_t capacity = 0;   // rows that a rank can receive, padding included
  Overflow overflow = Overflow::kError;
  const int32_t* rank_of_expert = nullptr;  // [num_experts]
};

// Experts in ascending order, as evenly as can be: the first num_experts % ranks ranks own one
// more.
constexpr int64_t EvenRankOfExpert(int64_t expert, int64_t num_experts, int64_t ranks) {
  const int64_t few = num_experts / ranks;
  const int64_t more = num_experts % ranks;
  const int64_t boundary = more * (few + 1);
  return expert < boundary ? expert / (few + 1) : more + (expert - boundary) / few;
}

// The largest number of experts that one rank owns; the number of groups in every rank's plan.
int64_t MaxLocalExperts(const Group& group);

// The most rows, padding included, that `tokens` tokens in all can send to a rank that owns
// `local_experts` experts: reached by some routing, never exceeded.
int64_t WorstCapacity(int64_t tokens, int64_t topk, int64_t local_experts, int64_t alignment);

int64_t PlanWords(const Group& group, int64_t tokens);

// Counts this rank's slots per expert: counts [E] i32.
//   Errors    kOutOfRange: an id < -1 or >= E, or an expert twice in one token; the first such slot
//             is named. kInvalidArgument: shapes or types.
Status CountSlots(const Group& group, ConstTensorView experts, int32_t* counts);

// Fills the plan of `rank` from its experts [T,k] i32 and the counts [ranks, E] of all ranks.
//   words [PlanWords(group, T)] i32.
//   Empty     T = 0 here or anywhere, -1 ids, experts without slots and ranks without experts are
//             normal.
//   Numerics  integers; a pure function of its arguments.
//   Errors    kInvalidArgument (shapes, a table entry outside [0, ranks), counts that are not those
//             of experts); kResourceExhausted under Overflow::kError when any rank needs more rows
//             than the capacity: the message gives the rank, and rows needed and given, the same on
//             all ranks.
Status FillPlan(const Group& group, int64_t rank, ConstTensorView experts, ConstTensorView counts,
                TensorView words);
// The oracle: sorts all slots of all ranks. experts[r] [T_r,k] are valid. Writes the slots of
// `rank` alone: slot_rank, slot_row [T,k] (-1 where routed nowhere; the capacity is ignored) and
// the offsets of the groups of its own n experts [n+1].
void PlanReference(const Group& group, int64_t rank, const ConstTensorView* experts,
                   int32_t* slot_rank, int32_t* slot_row, int32_t* group_offsets);

// A plan's parts, in place.
struct Plan {
  int64_t ranks = 0;
  int64_t rank = 0;
  int64_t num_experts = 0;
  int64_t topk = 0;
  int64_t tokens = 0;
  int64_t local_experts = 0;  // groups; those past this rank's own experts are empty
  int64_t capacity = 0;       // rows of every rank's buffer
  int64_t used_rows = 0;      // group_offsets[local_experts]: rows of this rank, padding included
  int64_t dropped = 0;        // slots of this rank's tokens that were left out
  int64_t needed = 0;         // rows that the fullest rank needs
  const int32_t* counts = nullptr;             // [ranks, E]
  const int32_t* slot_rank = nullptr;          // [T,k] owner of the slot's expert; -1: no row
  const int32_t* slot_row = nullptr;           // [T,k] row there; -1: no row; after slot_rank
  const int32_t* slot_order = nullptr;         // [T,k] the token's slots in ascending expert order
  const int32_t* group_sizes = nullptr;        // [L] rows that carry a token
  const int32_t* all_group_offsets = nullptr;  // [ranks, L+1]
  const int32_t* group_offsets = nullptr;      // [L+1], this rank's of them
};

// Rows may travel in waves, each with buffers of its own: wave w of `waves` is, on every rank, the
// groups FirstGroup(w) to FirstGroup(w + 1) - 1, some waves none. A row's place in its wave's
// buffer is its row in the plan minus WaveBegin.
struct Waves {
  int64_t count = 1;
  int64_t FirstGroup(const Plan& plan, int64_t wave) const {
    return wave * plan.local_experts / count;
  }
  int64_t Begin(const Plan& plan, int64_t rank, int64_t wave) const {
    return plan.all_group_offsets[rank * (plan.local_experts + 1) + FirstGroup(plan, wave)];
  }
};
inline constexpr int64_t kMaxWaves = 64;

// Reads the plan in words. kInvalidArgument when it is none, was made for other sizes, or fails its
// checksum.
Status ReadPlan(ConstTensorView words, Plan* plan);

}  // namespace anabranch::expert_parallel

#endif  // ANABRANCH_COMM_EXPERT_PARALLEL_PLAN_H_
