// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/prepare.h"

#include <algorithm>
#include <string>
#include <vector>

namespace anabranch::expert_parallel {
namespace {

Status ToGroup(const PrepareArgs& args, int64_t ranks, Group* group) {
  if (args.rank_of_expert.rank() != 1 || args.rank_of_expert.dtype() != DType::kI32 ||
      args.experts.rank() != 2) {
    return InvalidArgument("expert_parallel: experts is ", args.experts.ToString(),
                           " and rank_of_expert ", args.rank_of_expert.ToString(),
                           "; must be i32[T,k] and i32[E]");
  }
  *group = {.ranks = ranks,
            .num_experts = args.rank_of_expert.size(0),
            .topk = args.experts.size(1),
            .alignment = args.alignment,
            .capacity = args.capacity,
            .overflow = args.overflow,
            .rank_of_expert = args.rank_of_expert.as<int32_t>()};
  return Status::Ok();
}

Status OfRank(int64_t rank, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), "rank " + std::to_string(rank) + ": " + status.message());
}

// The plan, and copies of what a program reads of it.
Status Finish(const PrepareArgs& args, const Group& group, int64_t rank, ConstTensorView counts) {
  ANABRANCH_RETURN_IF_ERROR(FillPlan(group, rank, args.experts, counts, args.plan));
  Plan plan;
  ANABRANCH_RETURN_IF_ERROR(ReadPlan(args.plan, &plan));
  const int64_t local = plan.local_experts;
  if (!args.group_sizes.HasShape({local}) || !args.group_offsets.HasShape({local + 1}) ||
      !args.report.HasShape({3})) {
    return InvalidArgument("expert_parallel: group_sizes is ", args.group_sizes.ToString(),
                           ", group_offsets ", args.group_offsets.ToString(), ", report ",
                           args.report.ToString(), "; must be i32[", local, "], i32[", local + 1,
                           "], i32[3]");
  }
  std::copy_n(plan.group_sizes, local, args.group_sizes.as<int32_t>());
  std::copy_n(plan.group_offsets, local + 1, args.group_offsets.as<int32_t>());
  const int64_t report[] = {plan.capacity, plan.needed, plan.dropped};
  std::copy_n(report, 3, args.report.as<int32_t>());
  return Status::Ok();
}

}  // namespace

Status PrepareTogether(std::span<const PrepareArgs* const> ranks, Executor& executor) {
  const int64_t count = static_cast<int64_t>(ranks.size());
  std::vector<Group> groups(count);
  std::vector<Status> statuses(count);
  for (int64_t rank = 0; rank < count; ++rank) {
    ANABRANCH_RETURN_IF_ERROR(OfRank(rank, ToGroup(*ranks[rank], count, &groups[rank])));
    if (groups[rank].num_experts != groups[0].num_experts) {
      return InvalidArgument("expert_parallel: rank ", rank, " has E=", groups[rank].num_experts,
                             ", rank 0 E=", groups[0].num_experts);
    }
  }
  const int64_t num_experts = groups[0].num_experts;
  std::vector<int32_t> counts(count * num_experts);
  executor.ParallelFor(count, [&](int64_t rank, int) {
    statuses[rank] =
        CountSlots(groups[rank], ranks[rank]->experts, counts.data() + rank * num_experts);
  });
  for (int64_t rank = 0; rank < count; ++rank) {
    ANABRANCH_RETURN_IF_ERROR(OfRank(rank, statuses[rank]));
  }
  executor.ParallelFor(count, [&](int64_t rank, int) {
    statuses[rank] = Finish(*ranks[rank], groups[rank], rank,
                            ConstTensorView(counts.data(), {count, num_experts}));
  });
  for (int64_t rank = 0; rank < count; ++rank) {
    // An overflow is the same on all ranks and names the rank that it is about.
    if (statuses[rank].code() == StatusCode::kResourceExhausted) return statuses[rank];
    ANABRANCH_RETURN_IF_ERROR(OfRank(rank, statuses[rank]));
  }
  return Status::Ok();
}

Status Prepare(const PrepareArgs& args, const Call& call, Transport& transport) {
  Group group;
  Status status = ToGroup(args, transport.size(), &group);
  if (!status.ok()) group = {.rank_of_expert = nullptr};
  // A rank at fault must still come, or the others would wait for it: counts of -1 say so.
  const int64_t num_experts = std::max<int64_t>(1, args.rank_of_expert.num_elements());
  std::vector<int32_t> mine(num_experts, -1);
  std::vector<int32_t> counts(num_experts * transport.size());
  if (status.ok()) status = CountSlots(group, args.experts, mine.data());
  if (!status.ok()) std::fill(mine.begin(), mine.end(), -1);
  ANABRANCH_RETURN_IF_ERROR(transport.AllGather(
      call, mine.data(), num_experts * static_cast<int64_t>(sizeof(int32_t)), counts.data()));
  ANABRANCH_RETURN_IF_ERROR(OfRank(transport.rank(), status));
  for (int rank = 0; rank < transport.size(); ++rank) {
    if (counts[rank * num_experts] >= 0) continue;
    return InvalidArgument(call.operation, ": rank ", rank, " found a fault in its arguments");
  }
  return Finish(args, group, transport.rank(),
                ConstTensorView(counts.data(), {transport.size(), num_experts}));
}

}  // namespace anabranch::expert_parallel
