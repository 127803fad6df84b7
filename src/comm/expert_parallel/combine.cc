// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/expert_parallel/combine.h"

#include <algorithm>
#include <vector>

#include "base/context.h"
#include "base/stream_copy.h"
#include "comm/expert_parallel/plan.h"
#include "comm/expert_parallel/sum_rows.h"
#include "tile/tile.h"

namespace anabranch::expert_parallel {
namespace {

// A unit moves about this many bytes: 10 us at 10 GB/s, well above the cost of handing it out.
constexpr int64_t kBytesPerUnit = 1 << 17;

// Where the rows of one wave of a rank lie: rows `begin` to `end` - 1 of the plan.
struct Source {
  int64_t begin, end;
  const char* rows;
  const float* row_weights;
};

Waves WavesOf(const CombineArgs& args) {
  return {.count = 1 + static_cast<int64_t>(args.later_waves.size())};
}

WaveRows RowsOf(const CombineArgs& args, int64_t wave) {
  return wave == 0 ? WaveRows{args.rows, args.row_weights} : args.later_waves[wave - 1];
}

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
  if (args.domain_size < 0) {
    return InvalidArgument("expert_parallel_combine: rank ", rank,
                           ": domain_size=", args.domain_size, "; must not be negative");
  }
  if (plan->topk > kMaxTopk) {
    return MakeStatus(StatusCode::kUnimplemented, "expert_parallel_combine: topk=", plan->topk,
                      "; must be at most ", kMaxTopk);
  }
  const Waves waves = WavesOf(args);
  if (waves.count > kMaxWaves) {
    return InvalidArgument("expert_parallel_combine: rank ", rank, ": ", waves.count,
                           " waves; must be at most ", kMaxWaves);
  }
  const DType type = args.rows.dtype();
  for (int64_t wave = 0; wave < waves.count; ++wave) {
    const auto& [rows, row_weights] = RowsOf(args, wave);
    const int64_t room = waves.count == 1
                             ? plan->capacity
                             : waves.Begin(*plan, rank, wave + 1) - waves.Begin(*plan, rank, wave);
    if (rows.rank() != 2 || rows.size(0) < room || rows.dtype() != type || type == DType::kI32 ||
        rows.size(1) != args.rows.size(1)) {
      return Misfit("rows", rows, *plan, rank);
    }
    if (row_weights.has_value() != args.row_weights.has_value() ||
        (row_weights.has_value() && (row_weights.rank() != 1 || row_weights.size(0) < room ||
                                     row_weights.dtype() != DType::kF32))) {
      return Misfit("row_weights", row_weights, *plan, rank);
    }
  }
  if (!args.y.HasShape({plan->tokens, args.rows.size(1)}) || args.y.dtype() != type) {
    return Misfit("y", args.y, *plan, rank);
  }
  if (!args.row_weights.has_value()) return Status::Ok();
  if (!args.weights.HasShape({plan->tokens, plan->topk}) || args.weights.dtype() != DType::kF32) {
    return Misfit("weights", args.weights, *plan, rank);
  }
  return Status::Ok();
}

// The rows of one token: where each lies and whose it is, in ascending expert order.
struct TokenRows {
  const void* row[kMaxTopk];
  int32_t rank[kMaxTopk];
  int64_t count = 0;
};

// Adds up a token's rows.
class TokenSum {
 public:
  TokenSum(const CombineArgs& args, bool streams)
      : hidden_(args.y.size(1)), domain_size_(args.domain_size), streams_(streams) {
    const SumTable sums = FindSums(tile::Kernels().isa);
    sum_ = args.y.dtype() == DType::kBF16 ? sums.bf16 : sums.f32;
    row_bytes_ = hidden_ * SizeOf(args.y.dtype());
  }
  // partial: room for the sums of the token's domains; what it holds before is not read.
  void Run(const TokenRows& rows, std::vector<char>* partial, char* y) const {
    if (domain_size_ == 0) return sum_(rows.row, rows.count, hidden_, streams_, y);
    partial->resize(rows.count * row_bytes_);
    const void* sums[kMaxTopk];
    int64_t num_sums = 0;
    for (int64_t next = 0; next >= 0;) {
      const int64_t domain = next;
      const void* inside[kMaxTopk];
      int64_t count = 0;
      next = -1;
      for (int64_t i = 0; i < rows.count; ++i) {
        const int64_t of_row = rows.rank[i] / domain_size_;
        if (of_row == domain) inside[count++] = rows.row[i];
        if (of_row > domain && (next < 0 || of_row < next)) next = of_row;
      }
      if (count == 0) continue;
      char* const to = partial->data() + num_sums * row_bytes_;
      sum_(inside, count, hidden_, false, to);
      sums[num_sums++] = to;
    }
    sum_(sums, num_sums, hidden_, streams_, y);
  }

 private:
  int64_t hidden_, domain_size_, row_bytes_;
  bool streams_;
  SumRows sum_;
};

// Rows `begin` to `end` - 1 of this rank that are its own tokens', as bytes from `begin`: no other
// rank fetches them.
std::vector<ByteRange> RowsOfOwnTokens(const Plan& plan, int64_t begin, int64_t end,
                                       int64_t row_bytes) {
  std::vector<uint8_t> own(end - begin, 0);
  for (int64_t slot = 0; slot < plan.tokens * plan.topk; ++slot) {
    const int64_t row = plan.slot_row[slot];
    if (plan.slot_rank[slot] == plan.rank && row >= begin && row < end) own[row - begin] = 1;
  }
  std::vector<ByteRange> ranges;
  for (int64_t row = 0; row < end - begin; ++row) {
    if (own[row] == 0) continue;
    const int64_t first = row;
    while (row < end - begin && own[row] != 0) ++row;
    ranges.push_back({first * row_bytes, row * row_bytes});
  }
  return ranges;
}

// sources [ranks, waves]
void Fetch(const CombineArgs& args, const Plan& plan, const std::vector<Source>& sources,
           Executor& executor) {
  const int64_t waves = WavesOf(args).count;
  const int64_t hidden = args.y.size(1);
  const DType type = args.y.dtype();
  const int64_t row_bytes = hidden * SizeOf(type);
  const int64_t token_bytes = std::max<int64_t>(1, (plan.topk + 1) * row_bytes);
  const int64_t per_unit = std::max<int64_t>(1, kBytesPerUnit / token_bytes);
  float* weights = args.row_weights.has_value() ? args.weights.as<float>() : nullptr;
  // Whole lines alone can be streamed; a y that fits a cache is better left there.
  const bool streams = plan.tokens * row_bytes >= kStreamedPayloadBytes && row_bytes % 64 == 0 &&
                       reinterpret_cast<uintptr_t>(args.y.data()) % 64 == 0;
  const TokenSum sum(args, streams);
  executor.ParallelFor(CeilDiv(plan.tokens, per_unit), [&](int64_t unit, int) {
    std::vector<char> partial;
    const int64_t end = std::min(plan.tokens, (unit + 1) * per_unit);
    for (int64_t token = unit * per_unit; token < end; ++token) {
      TokenRows rows;
      const int64_t first = token * plan.topk;
      for (int64_t i = 0; i < plan.topk; ++i) {
        const int64_t slot = first + plan.slot_order[first + i];
        if (weights != nullptr) weights[slot] = 0.0f;
        if (plan.slot_row[slot] < 0) continue;
        const Source* source = &sources[plan.slot_rank[slot] * waves];
        while (plan.slot_row[slot] >= source->end) ++source;
        const int64_t row = plan.slot_row[slot] - source->begin;
        if (weights != nullptr) weights[slot] = source->row_weights[row];
        rows.rank[rows.count] = plan.slot_rank[slot];
        rows.row[rows.count++] = source->rows + row * row_bytes;
      }
      sum.Run(rows, &partial, args.y.as<char>() + token * row_bytes);
    }
    if (streams) StreamFence();
  });
}

}  // namespace

Status CombineTogether(std::span<const CombineArgs* const> ranks, Executor& executor) {
  const int64_t count = static_cast<int64_t>(ranks.size());
  std::vector<Plan> plans(count);
  const Waves waves = WavesOf(*ranks[0]);
  std::vector<Source> sources;
  for (int64_t rank = 0; rank < count; ++rank) {
    ANABRANCH_RETURN_IF_ERROR(Check(*ranks[rank], rank, count, &plans[rank]));
    if (plans[rank].capacity != plans[0].capacity ||
        ranks[rank]->rows.size(1) != ranks[0]->rows.size(1) ||
        ranks[rank]->rows.dtype() != ranks[0]->rows.dtype() ||
        ranks[rank]->row_weights.has_value() != ranks[0]->row_weights.has_value() ||
        WavesOf(*ranks[rank]).count != waves.count ||
        ranks[rank]->domain_size != ranks[0]->domain_size) {
      return InvalidArgument("expert_parallel_combine: rank ", rank, " passes rows ",
                             ranks[rank]->rows.ToString(), " and capacity=", plans[rank].capacity,
                             ", rank 0 rows ", ranks[0]->rows.ToString(),
                             " and capacity=", plans[0].capacity);
    }
    for (int64_t wave = 0; wave < waves.count; ++wave) {
      const WaveRows from = RowsOf(*ranks[rank], wave);
      sources.push_back({waves.Begin(plans[rank], rank, wave),
                         waves.Begin(plans[rank], rank, wave + 1), from.rows.as<char>(),
                         from.row_weights.as<float>()});
    }
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
  const Waves waves = WavesOf(args);
  const int64_t row_bytes = fault.ok() ? args.rows.size(1) * SizeOf(args.rows.dtype()) : 0;
  const bool weighted = args.row_weights.has_value() && fault.ok();
  std::vector<Window> windows;
  std::vector<std::vector<ByteRange>> kept(waves.count);
  for (int64_t wave = 0; wave < waves.count; ++wave) {
    const WaveRows from = RowsOf(args, wave);
    const int64_t begin = fault.ok() ? waves.Begin(plan, plan.rank, wave) : 0;
    const int64_t end = fault.ok() ? waves.Begin(plan, plan.rank, wave + 1) : 0;
    if (fault.ok()) kept[wave] = RowsOfOwnTokens(plan, begin, end, row_bytes);
    windows.push_back({const_cast<void*>(from.rows.data()), (end - begin) * row_bytes, kept[wave]});
    windows.push_back({const_cast<void*>(from.row_weights.data()),
                       weighted ? (end - begin) * static_cast<int64_t>(sizeof(float)) : 0});
  }
  return transport.Share(call, windows, Access::kPeersRead, [&](std::span<const Window> peers) {
    ANABRANCH_RETURN_IF_ERROR(fault);
    std::vector<Source> sources;
    for (int64_t rank = 0; rank < transport.size(); ++rank) {
      for (int64_t wave = 0; wave < waves.count; ++wave) {
        const Window* at = &peers[2 * (rank * waves.count + wave)];
        sources.push_back({waves.Begin(plan, rank, wave), waves.Begin(plan, rank, wave + 1),
                           static_cast<const char*>(at[0].data),
                           static_cast<const float*>(at[1].data)});
      }
    }
    Fetch(args, plan, sources, executor);
    return Status::Ok();
  });
}

}  // namespace anabranch::expert_parallel
