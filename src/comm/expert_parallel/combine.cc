// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/combine.h"

#include <algorithm>
#include <vector>

#include "base/context.h"
#include "comm/expert_parallel/plan.h"
#include "comm/expert_parallel/sum_rows.h"
#include "comm/stream_copy.h"
#include "tile/tile.h"

namespace anabranch::expert_parallel {
namespace {

// A unit moves about this many bytes: 10 us at 10 GB/s, well above the cost of handing it out.
constexpr int64_t kBytesPerUnit = 1 << 17;

// Where a rank's rows lie.
struct Source {
  const char* rows;
  const float* row_weights;
};

Status Misfit(const char* name, const ConstTensorView& view, const Plan& plan, int64_t rank) {
  return InvalidArgument("expert_parallel_combine: rank ", rank, ": ", name, " is ",
                         view.ToString(), ", which does not fit a plan of T=", plan.tokens,
                         " k=", plan.topk, " capacity=", plan.capacity);
}

Status Check(const CombineArgs& args, int64_t rank, int64_t ranks, Plan* plan) {
  ANABRANCH_RETURN_IF_ERROR(ReadPlan(args.plan, plan));
  if (plan->ranks != ranks || plan->rank != rank) {
    return InvalidArgument("expert_parallel_combine: rank ", rank, " of ", ranks,
                           " passes the plan of rank ", plan->rank, " of ", plan->ranks);
  }
  if (plan->topk > kMaxTopk) {
    return MakeStatus(StatusCode::kUnimplemented, "expert_parallel_combine: topk=", plan->topk,
                      "; must be at most ", kMaxTopk);
  }
  const DType type = args.rows.dtype();
  if (args.rows.rank() != 2 || args.rows.size(0) < plan->capacity || type == DType::kI32) {
    return Misfit("rows", args.rows, *plan, rank);
  }
  if (!args.y.HasShape({plan->tokens, args.rows.size(1)}) || args.y.dtype() != type) {
    return Misfit("y", args.y, *plan, rank);
  }
  if (!args.row_weights.has_value()) return Status::Ok();
  if (args.row_weights.rank() != 1 || args.row_weights.dtype() != DType::kF32 ||
      args.row_weights.size(0) < plan->capacity) {
    return Misfit("row_weights", args.row_weights, *plan, rank);
  }
  if (!args.weights.HasShape({plan->tokens, plan->topk}) || args.weights.dtype() != DType::kF32) {
    return Misfit("weights", args.weights, *plan, rank);
  }
  return Status::Ok();
}

void Fetch(const CombineArgs& args, const Plan& plan, const std::vector<Source>& sources,
           Executor& executor) {
  const int64_t hidden = args.y.size(1);
  const DType type = args.y.dtype();
  const int64_t row_bytes = hidden * SizeOf(type);
  const int64_t token_bytes = std::max<int64_t>(1, (plan.topk + 1) * row_bytes);
  const int64_t per_unit = std::max<int64_t>(1, kBytesPerUnit / token_bytes);
  float* weights = args.row_weights.has_value() ? args.weights.as<float>() : nullptr;
  const SumTable sums = FindSums(tile::Kernels().isa);
  const SumRows sum = type == DType::kBF16 ? sums.bf16 : sums.f32;
  // Whole lines alone can be streamed; a y that fits a cache is better left there.
  const bool streams = plan.tokens * row_bytes >= kStreamedPayloadBytes && row_bytes % 64 == 0 &&
                       reinterpret_cast<uintptr_t>(args.y.data()) % 64 == 0;
  executor.ParallelFor(CeilDiv(plan.tokens, per_unit), [&](int64_t unit, int) {
    const int64_t end = std::min(plan.tokens, (unit + 1) * per_unit);
    for (int64_t token = unit * per_unit; token < end; ++token) {
      const void* rows[kMaxTopk];
      int64_t count = 0;
      const int64_t first = token * plan.topk;
      for (int64_t i = 0; i < plan.topk; ++i) {
        const int64_t slot = first + plan.slot_order[first + i];
        const int64_t row = plan.slot_row[slot];
        if (weights != nullptr) weights[slot] = 0.0f;
        if (row < 0) continue;
        const Source& source = sources[plan.slot_rank[slot]];
        if (weights != nullptr) weights[slot] = source.row_weights[row];
        rows[count++] = source.rows + row * row_bytes;
      }
      sum(rows, count, hidden, streams, args.y.as<char>() + token * row_bytes);
    }
    if (streams) StreamFence();
  });
}

}  // namespace

Status CombineTogether(std::span<const CombineArgs* const> ranks, Executor& executor) {
  const int64_t count = static_cast<int64_t>(ranks.size());
  std::vector<Plan> plans(count);
  std::vector<Source> sources(count);
  for (int64_t rank = 0; rank < count; ++rank) {
    ANABRANCH_RETURN_IF_ERROR(Check(*ranks[rank], rank, count, &plans[rank]));
    if (plans[rank].capacity != plans[0].capacity ||
        ranks[rank]->rows.size(1) != ranks[0]->rows.size(1) ||
        ranks[rank]->rows.dtype() != ranks[0]->rows.dtype() ||
        ranks[rank]->row_weights.has_value() != ranks[0]->row_weights.has_value()) {
      return InvalidArgument("expert_parallel_combine: rank ", rank, " passes rows ",
                             ranks[rank]->rows.ToString(), " and capacity=", plans[rank].capacity,
                             ", rank 0 rows ", ranks[0]->rows.ToString(),
                             " and capacity=", plans[0].capacity);
    }
    sources[rank] = {ranks[rank]->rows.as<char>(), ranks[rank]->row_weights.as<float>()};
  }
  for (int64_t rank = 0; rank < count; ++rank) {
    Fetch(*ranks[rank], plans[rank], sources, executor);
  }
  return Status::Ok();
}

Status Combine(const CombineArgs& args, const Call& call, Transport& transport,
               Executor& executor) {
  Plan plan;
  const Status fault = Check(args, transport.rank(), transport.size(), &plan);
  // A rank whose arguments are wrong must still come, or the others would wait for it.
  const int64_t used = fault.ok() ? plan.used_rows : 0;
  const int64_t row_bytes = fault.ok() ? args.rows.size(1) * SizeOf(args.rows.dtype()) : 0;
  const bool weighted = args.row_weights.has_value() && fault.ok();
  const Window windows[] = {{const_cast<void*>(args.rows.data()), used * row_bytes},
                            {const_cast<void*>(args.row_weights.data()),
                             weighted ? used * static_cast<int64_t>(sizeof(float)) : 0}};
  return transport.Share(call, windows, Access::kPeersRead, [&](void* const* peers) {
    ANABRANCH_RETURN_IF_ERROR(fault);
    std::vector<Source> sources(transport.size());
    for (int rank = 0; rank < transport.size(); ++rank) {
      sources[rank] = {static_cast<const char*>(peers[2 * rank]),
                       static_cast<const float*>(peers[2 * rank + 1])};
    }
    Fetch(args, plan, sources, executor);
    return Status::Ok();
  });
}

}  // namespace anabranch::expert_parallel
