// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/dispatch.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/context.h"
#include "base/stream_copy.h"
#include "comm/expert_parallel/plan.h"

namespace anabranch::expert_parallel {
namespace {

// A unit moves about this many bytes: 10 us at 10 GB/s, well above the cost of handing it out. What
// is streamed is fenced at the end of a unit, which waits for memory: such units are longer.
constexpr int64_t kBytesPerUnit = 1 << 17;
constexpr int64_t kStreamedBytesPerUnit = 1 << 20;
constexpr int64_t kWord = 4;  // bytes of an i32 or f32
// What a rank shows when others read: slot_rank and slot_row, x, weights; when they write: rows and
// row_weights.
constexpr size_t kPulledWindows = 3;
constexpr size_t kPushedWindows = 2;

// Rows of the plan: those of the wave that a rank's buffer holds.
struct Range {
  int64_t begin = 0, end = 0;
};

// Where a rank's rows lie. A rank whose range is empty receives nothing.
struct Target {
  Range range;
  char* rows = nullptr;
  float* row_weights = nullptr;
};

// One rank's tokens, and where they go.
struct Source {
  int64_t tokens;
  const int32_t* slot_rank;
  const int32_t* slot_row;
  const char* x;
  const float* weights;
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

// Zeroes the padding of one rank's own rows.
void ClearPadding(const DispatchArgs& args, const Plan& plan, const Target& mine) {
  const int64_t row_bytes = args.x.size(1) * SizeOf(args.x.dtype());
  const int64_t last = args.waves.FirstGroup(plan, args.wave + 1);
  for (int64_t local = args.waves.FirstGroup(plan, args.wave); local < last; ++local) {
    const int64_t end = plan.group_offsets[local] + plan.group_sizes[local];
    const int64_t first = end - mine.range.begin;
    const int64_t count = plan.group_offsets[local + 1] - end;
    if (count == 0) continue;
    if (row_bytes > 0) std::memset(mine.rows + first * row_bytes, 0, count * row_bytes);
    if (args.weights.has_value()) std::fill_n(mine.row_weights + first, count, 0.0f);
  }
}

// Copies what the targets want of one rank's tokens: each token is read once for all its rows.
void Move(const Source& source, int64_t topk, int64_t row_bytes, CopyRow copy,
          const std::vector<Target>& targets, Executor& executor) {
  const int64_t token_bytes = std::max<int64_t>(1, topk * row_bytes);
  const int64_t unit_bytes = copy == CopyStreaming ? kStreamedBytesPerUnit : kBytesPerUnit;
  const int64_t per_unit = std::max<int64_t>(1, unit_bytes / token_bytes);
  executor.ParallelFor(CeilDiv(source.tokens, per_unit), [&](int64_t unit, int) {
    const int64_t end = std::min(source.tokens, (unit + 1) * per_unit);
    for (int64_t token = unit * per_unit; token < end; ++token) {
      const char* from = source.x + token * row_bytes;
      for (int64_t slot = token * topk; slot < (token + 1) * topk; ++slot) {
        if (source.slot_row[slot] < 0) continue;
        const Target& target = targets[source.slot_rank[slot]];
        const int64_t row = source.slot_row[slot] - target.range.begin;
        if (row < 0 || row >= target.range.end - target.range.begin) continue;
        if (row_bytes > 0) copy(target.rows + row * row_bytes, from, row_bytes);
        if (source.weights != nullptr) target.row_weights[row] = source.weights[slot];
      }
    }
    StreamFence();
  });
}

// All that one rank has for the targets.
void Send(const DispatchArgs& args, const Plan& plan, const std::vector<Target>& targets,
          Executor& executor) {
  const int64_t row_bytes = args.x.size(1) * SizeOf(args.x.dtype());
  const CopyRow copy = Copier(plan.tokens * plan.topk * row_bytes);
  Move({plan.tokens, plan.slot_rank, plan.slot_row, args.x.as<char>(),
        args.weights.has_value() ? args.weights.as<float>() : nullptr},
       plan.topk, row_bytes, copy, targets, executor);
}

Target TargetOf(const DispatchArgs& args, const Plan& plan, int64_t rank) {
  return {RangeOf(args, plan, rank), args.rows.as<char>(), args.row_weights.as<float>()};
}

// One rank takes its rows from what all ranks show: slots, x and weights of each.
Status Receive(const DispatchArgs& args, const Plan& plan, std::span<const Window> peers,
               Executor& executor) {
  const int64_t row_bytes = args.x.size(1) * SizeOf(args.x.dtype());
  std::vector<Target> targets(plan.ranks);
  Target& mine = targets[plan.rank] = TargetOf(args, plan, plan.rank);
  const CopyRow copy = Copier((mine.range.end - mine.range.begin) * row_bytes);
  ClearPadding(args, plan, mine);
  for (int64_t i = 0; i < plan.ranks; ++i) {
    // Ranks begin at different ones, so that they do not all read the same memory.
    const int64_t rank = (plan.rank + i) % plan.ranks;
    const Window* shown = &peers[kPulledWindows * rank];
    const int64_t slots = shown[0].bytes / (2 * kWord);
    const int64_t tokens = plan.topk == 0 ? 0 : slots / plan.topk;
    if (shown[1].bytes != tokens * row_bytes) {
      return InvalidArgument("expert_parallel_dispatch: rank ", rank, " shows ", shown[1].bytes,
                             " bytes of x for ", tokens, " tokens, but rank ", plan.rank,
                             " has rows of ", row_bytes);
    }
    const auto* slot_rank = static_cast<const int32_t*>(shown[0].data);
    Move({tokens, slot_rank, slot_rank + slots, static_cast<const char*>(shown[1].data),
          args.weights.has_value() ? static_cast<const float*>(shown[2].data) : nullptr},
         plan.topk, row_bytes, copy, targets, executor);
  }
  return Status::Ok();
}

// Over memory that ranks share: x passes through it once, where its k copies would have to.
Status Pull(const DispatchArgs& args, const Plan& plan, const Call& call, Transport& transport,
            Executor& executor) {
  const int64_t slots = plan.tokens * plan.topk;
  const int64_t x_bytes = slots == 0 ? 0 : args.x.num_elements() * SizeOf(args.x.dtype());
  const Window windows[kPulledWindows] = {
      {const_cast<int32_t*>(plan.slot_rank), 2 * slots * kWord},
      {const_cast<void*>(args.x.data()), x_bytes},
      {const_cast<void*>(args.weights.data()), args.weights.has_value() ? slots * kWord : 0}};
  return transport.Share(call, windows, Access::kPeersRead, [&](std::span<const Window> peers) {
    return Receive(args, plan, peers, executor);
  });
}

// Over messages: what is written into the others' windows travels, each row for itself.
Status Push(const DispatchArgs& args, const Plan& plan, const Call& call, Transport& transport,
            Executor& executor) {
  const int64_t row_bytes = args.x.size(1) * SizeOf(args.x.dtype());
  const Target mine = TargetOf(args, plan, plan.rank);
  const int64_t used = mine.range.end - mine.range.begin;
  const Window windows[kPushedWindows] = {
      {args.rows.data(), used * row_bytes},
      {args.row_weights.data(), args.weights.has_value() ? used * kWord : 0}};
  return transport.Share(call, windows, Access::kPeersWrite, [&](std::span<const Window> peers) {
    std::vector<Target> targets(plan.ranks);
    for (int64_t rank = 0; rank < plan.ranks; ++rank) {
      const Window* shown = &peers[kPushedWindows * rank];
      targets[rank] = {RangeOf(args, plan, rank), static_cast<char*>(shown[0].data),
                       static_cast<float*>(shown[1].data)};
    }
    ClearPadding(args, plan, targets[plan.rank]);
    Send(args, plan, targets, executor);
    return Status::Ok();
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
    targets[rank] = TargetOf(*ranks[rank], plans[rank], rank);
  }
  for (int64_t rank = 0; rank < count; ++rank) {
    ClearPadding(*ranks[rank], plans[rank], targets[rank]);
    Send(*ranks[rank], plans[rank], targets, executor);
  }
  return Status::Ok();
}

Status Dispatch(const DispatchArgs& args, const Call& call, Transport& transport,
                Executor& executor) {
  Plan plan;
  const Status fault = Check(args, transport.rank(), transport.size(), &plan);
  const bool pulls = transport.shares_memory();
  // A rank whose arguments are wrong must still come, or the others would wait for it.
  if (!fault.ok()) {
    const Window nothing[kPulledWindows] = {};
    return transport.Share(call, {nothing, pulls ? kPulledWindows : kPushedWindows},
                           pulls ? Access::kPeersRead : Access::kPeersWrite,
                           [&](std::span<const Window>) { return fault; });
  }
  return pulls ? Pull(args, plan, call, transport, executor)
               : Push(args, plan, call, transport, executor);
}

}  // namespace anabranch::expert_parallel
