// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/dispatch.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/context.h"
#include "comm/expert_parallel/plan.h"
#include "comm/stream_copy.h"

namespace anabranch::expert_parallel {
namespace {

// A unit moves about this many bytes: 10 us at 10 GB/s, well above the cost of handing it out.
constexpr int64_t kBytesPerUnit = 1 << 17;

// Where a rank's rows lie.
struct Target {
  char* rows;
  float* row_weights;
};

// The rows of the wave that a rank's buffer holds.
struct Range {
  int64_t begin, end;
};

Range RangeOf(const DispatchArgs& args, const Plan& plan, int64_t rank) {
  return {args.waves.Begin(plan, rank, args.wave), args.waves.Begin(plan, rank, args.wave + 1)};
}

Status Misfit(const char* name, const ConstTensorView& view, const Plan& plan, int64_t rank) {
  return InvalidArgument("expert_parallel_dispatch: rank ", rank, ": ", name, " is ",
                         view.ToString(), ", which does not fit a plan of T=", plan.tokens,
                         " k=", plan.topk, " capacity=", plan.capacity);
}

Status Check(const DispatchArgs& args, int64_t rank, int64_t ranks, Plan* plan) {
  ANABRANCH_RETURN_IF_ERROR(ReadPlan(args.plan, plan));
  if (plan->ranks != ranks || plan->rank != rank) {
    return InvalidArgument("expert_parallel_dispatch: rank ", rank, " of ", ranks,
                           " passes the plan of rank ", plan->rank, " of ", plan->ranks);
  }
  if (args.waves.count < 1 || args.waves.count > kMaxWaves || args.wave < 0 ||
      args.wave >= args.waves.count) {
    return InvalidArgument("expert_parallel_dispatch: rank ", rank, ": wave ", args.wave, " of ",
                           args.waves.count, "; must be in [0, waves), waves in [1, ", kMaxWaves,
                           "]");
  }
  const Range range = RangeOf(args, *plan, rank);
  const int64_t room = args.waves.count == 1 ? plan->capacity : range.end - range.begin;
  const DType type = args.x.dtype();
  if (args.x.rank() != 2 || args.x.size(0) != plan->tokens || type == DType::kI32) {
    return Misfit("x", args.x, *plan, rank);
  }
  if (args.rows.rank() != 2 || args.rows.size(0) < room || args.rows.dtype() != type ||
      args.rows.size(1) != args.x.size(1)) {
    return Misfit("rows", args.rows, *plan, rank);
  }
  if (!args.weights.has_value()) return Status::Ok();
  if (!args.weights.HasShape({plan->tokens, plan->topk}) || args.weights.dtype() != DType::kF32) {
    return Misfit("weights", args.weights, *plan, rank);
  }
  if (args.row_weights.rank() != 1 || args.row_weights.dtype() != DType::kF32 ||
      args.row_weights.size(0) < room) {
    return Misfit("row_weights", args.row_weights, *plan, rank);
  }
  return Status::Ok();
}

// One rank's sends, and the padding of its own rows.
void Send(const DispatchArgs& args, const Plan& plan, const std::vector<Target>& targets,
          Executor& executor) {
  const int64_t row_bytes = args.x.size(1) * SizeOf(args.x.dtype());
  const int64_t payload = plan.tokens * plan.topk * row_bytes;
  const CopyRow copy = Copier(payload);
  const Target& mine = targets[plan.rank];
  std::vector<Range> ranges(plan.ranks);
  for (int64_t rank = 0; rank < plan.ranks; ++rank) ranges[rank] = RangeOf(args, plan, rank);
  const int64_t last = args.waves.FirstGroup(plan, args.wave + 1);
  for (int64_t local = args.waves.FirstGroup(plan, args.wave); local < last; ++local) {
    const int64_t end = plan.group_offsets[local] + plan.group_sizes[local];
    const int64_t first = end - ranges[plan.rank].begin;
    const int64_t count = plan.group_offsets[local + 1] - end;
    if (count == 0) continue;
    if (row_bytes > 0) std::memset(mine.rows + first * row_bytes, 0, count * row_bytes);
    if (args.weights.has_value()) std::fill_n(mine.row_weights + first, count, 0.0f);
  }
  const int64_t token_bytes = std::max<int64_t>(1, plan.topk * row_bytes);
  const int64_t per_unit = std::max<int64_t>(1, kBytesPerUnit / token_bytes);
  const float* weights = args.weights.has_value() ? args.weights.as<float>() : nullptr;
  executor.ParallelFor(CeilDiv(plan.tokens, per_unit), [&](int64_t unit, int) {
    const int64_t end = std::min(plan.tokens, (unit + 1) * per_unit);
    for (int64_t token = unit * per_unit; token < end; ++token) {
      const char* from = args.x.as<char>() + token * row_bytes;
      for (int64_t slot = token * plan.topk; slot < (token + 1) * plan.topk; ++slot) {
        if (plan.slot_row[slot] < 0) continue;
        const Range& range = ranges[plan.slot_rank[slot]];
        const int64_t row = plan.slot_row[slot] - range.begin;
        if (row < 0 || row >= range.end - range.begin) continue;
        const Target& target = targets[plan.slot_rank[slot]];
        if (row_bytes > 0) copy(target.rows + row * row_bytes, from, row_bytes);
        if (weights != nullptr) target.row_weights[row] = weights[slot];
      }
    }
    StreamFence();
  });
}

}  // namespace

Status DispatchTogether(std::span<const DispatchArgs* const> ranks, Executor& executor) {
  const int64_t count = static_cast<int64_t>(ranks.size());
  std::vector<Plan> plans(count);
  std::vector<Target> targets(count);
  for (int64_t rank = 0; rank < count; ++rank) {
    ANABRANCH_RETURN_IF_ERROR(Check(*ranks[rank], rank, count, &plans[rank]));
    if (plans[rank].capacity != plans[0].capacity ||
        ranks[rank]->x.size(1) != ranks[0]->x.size(1) ||
        ranks[rank]->x.dtype() != ranks[0]->x.dtype() ||
        ranks[rank]->weights.has_value() != ranks[0]->weights.has_value() ||
        ranks[rank]->wave != ranks[0]->wave || ranks[rank]->waves.count != ranks[0]->waves.count) {
      return InvalidArgument("expert_parallel_dispatch: rank ", rank, " passes x ",
                             ranks[rank]->x.ToString(), ", capacity=", plans[rank].capacity,
                             " and wave ", ranks[rank]->wave, " of ", ranks[rank]->waves.count,
                             ", rank 0 x ", ranks[0]->x.ToString(),
                             ", capacity=", plans[0].capacity, " and wave ", ranks[0]->wave, " of ",
                             ranks[0]->waves.count);
    }
    targets[rank] = {ranks[rank]->rows.as<char>(), ranks[rank]->row_weights.as<float>()};
  }
  for (int64_t rank = 0; rank < count; ++rank) {
    Send(*ranks[rank], plans[rank], targets, executor);
  }
  return Status::Ok();
}

Status Dispatch(const DispatchArgs& args, const Call& call, Transport& transport,
                Executor& executor) {
  Plan plan;
  const Status fault = Check(args, transport.rank(), transport.size(), &plan);
  // A rank whose arguments are wrong must still come, or the others would wait for it.
  const Range range = fault.ok() ? RangeOf(args, plan, plan.rank) : Range{0, 0};
  const int64_t used = range.end - range.begin;
  const int64_t row_bytes = fault.ok() ? args.x.size(1) * SizeOf(args.x.dtype()) : 0;
  const bool weighted = args.weights.has_value() && fault.ok();
  const Window windows[] = {
      {args.rows.data(), used * row_bytes},
      {args.row_weights.data(), weighted ? used * static_cast<int64_t>(sizeof(float)) : 0}};
  return transport.Share(call, windows, Access::kPeersWrite, [&](void* const* peers) {
    ANABRANCH_RETURN_IF_ERROR(fault);
    std::vector<Target> targets(transport.size());
    for (int rank = 0; rank < transport.size(); ++rank) {
      targets[rank] = {static_cast<char*>(peers[2 * rank]),
                       static_cast<float*>(peers[2 * rank + 1])};
    }
    Send(args, plan, targets, executor);
    return Status::Ok();
  });
}

}  // namespace anabranch::expert_parallel
