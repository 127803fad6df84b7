// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Parallel stable counting sort: each block of tokens counts its slots per expert, one exclusive
// scan over (expert, block) turns the counts into first rows, and each block scatters its slots.
#include "ops/ragged_plan/ragged_plan.h"

#include <algorithm>
#include <limits>

#include "ops/ragged_plan/first_fault.h"

namespace anabranch {
namespace {

// About 10 us of counting, well above the cost of handing a block to another thread (1 us).
constexpr int64_t kSlotsPerBlock = 8192;
// The scan is serial and touches E entries per block; 32 blocks keep many threads busy and leave
// it at a few per cent of the counting.
constexpr int64_t kMaxBlocks = 32;
// Entries of row_token that one unit fills with -1.
constexpr int64_t kFillPerUnit = 65536;

int64_t NumBlocks(int64_t num_slots) {
  return std::clamp<int64_t>(num_slots / kSlotsPerBlock, 1, kMaxBlocks);
}

// Bin 0 counts the slots that are routed nowhere, bin e+1 those of expert e. Whole cache lines, so
// that two blocks never share one.
int64_t BinsPerBlock(int64_t num_experts) {
  return RoundUp(num_experts + 1, kCacheLineBytes / static_cast<int64_t>(sizeof(int32_t)));
}

Status Validate(const RaggedPlanArgs& args, const Context& context) {
  const ConstTensorView& experts = args.experts;
  if (experts.rank() != 2 || experts.dtype() != DType::kI32) {
    return InvalidArgument("ragged_plan: experts is ", experts.ToString(), "; must be i32[T,k]");
  }
  const TensorView& sizes = args.group_sizes;
  if (sizes.rank() != 1 || sizes.dtype() != DType::kI32 || sizes.size(0) < 1) {
    return InvalidArgument("ragged_plan: group_sizes is ", sizes.ToString(),
                           "; must be i32[E] with E >= 1");
  }
  const int64_t num_experts = sizes.size(0);
  const struct {
    const char* name;
    const TensorView& view;
    bool fits;
  } outputs[] = {
      {"group_offsets", args.group_offsets, args.group_offsets.HasShape({num_experts + 1})},
      {"row_token", args.row_token, args.row_token.rank() == 1},
      {"slot_row", args.slot_row, args.slot_row.HasShape({experts.size(0), experts.size(1)})},
  };
  for (const auto& output : outputs) {
    if (!output.fits || output.view.dtype() != DType::kI32) {
      return InvalidArgument("ragged_plan: ", output.name, " is ", output.view.ToString(),
                             ", which does not fit experts ", experts.ToString(),
                             " and group_sizes ", sizes.ToString());
    }
  }
  if (std::max(experts.num_elements(), args.row_token.size(0)) >
      std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("ragged_plan: experts ", experts.ToString(), " and row_token ",
                           args.row_token.ToString(), "; row numbers must fit in i32");
  }
  const int64_t needed = RaggedPlanScratchBytes(experts.num_elements(), num_experts);
  if (context.executor == nullptr || context.scratch_bytes < needed) {
    return InvalidArgument("ragged_plan: scratch has ", context.scratch_bytes, " bytes; needs ",
                           needed, " and an executor");
  }
  return Status::Ok();
}

// The slots [begin, end) of a block, their counts, later the next free row per bin.
struct Block {
  int64_t begin;
  int64_t end;
  int32_t* bins;
};

void Count(const int32_t* experts, int64_t num_experts, const Block& block, FirstFault& fault) {
  std::fill_n(block.bins, num_experts + 1, 0);
  for (int64_t slot = block.begin; slot < block.end; ++slot) {
    const uint32_t bin = static_cast<uint32_t>(experts[slot]) + 1u;  // -1 -> 0, -2 -> 2^32 - 1
    if (bin > static_cast<uint64_t>(num_experts)) {
      fault.Report(slot);
      return;
    }
    ++block.bins[bin];
  }
}

void Scatter(const RaggedPlanArgs& args, const Block& block) {
  const int32_t* experts = args.experts.as<int32_t>();
  int32_t* slot_row = args.slot_row.as<int32_t>();
  int32_t* row_token = args.row_token.as<int32_t>();
  const int64_t topk = args.experts.size(1);
  int64_t slot = block.begin;
  for (int64_t token = block.begin / topk; slot < block.end; ++token) {
    for (const int64_t end = slot + topk; slot < end; ++slot) {
      const int32_t expert = experts[slot];
      if (expert < 0) {
        slot_row[slot] = -1;
        continue;
      }
      const int32_t row = block.bins[expert + 1]++;
      slot_row[slot] = row;
      row_token[row] = static_cast<int32_t>(token);
    }
  }
}

// Turns the blocks' counts into their first rows; writes sizes and offsets. Returns the rows used.
int64_t Scan(const RaggedPlanArgs& args, int64_t num_blocks, int32_t* bins, int64_t pitch) {
  int32_t* sizes = args.group_sizes.as<int32_t>();
  int32_t* offsets = args.group_offsets.as<int32_t>();
  int32_t row = 0;
  for (int64_t expert = 0; expert < args.group_sizes.size(0); ++expert) {
    offsets[expert] = row;
    for (int64_t block = 0; block < num_blocks; ++block) {
      int32_t& entry = bins[block * pitch + expert + 1];
      const int32_t count = entry;
      entry = row;
      row += count;
    }
    sizes[expert] = row - offsets[expert];
  }
  offsets[args.group_sizes.size(0)] = row;
  return row;
}

}  // namespace

int64_t RaggedPlanScratchBytes(int64_t num_slots, int64_t num_experts) {
  return NumBlocks(num_slots) * BinsPerBlock(num_experts) * static_cast<int64_t>(sizeof(int32_t));
}

Status RaggedPlan(const RaggedPlanArgs& args, Context& context) {
  ANABRANCH_RETURN_IF_ERROR(Validate(args, context));
  const int64_t num_experts = args.group_sizes.size(0);
  const int64_t num_tokens = args.experts.size(0);
  const int64_t topk = args.experts.size(1);
  const int64_t num_rows = args.row_token.size(0);
  const int64_t num_blocks = NumBlocks(num_tokens * topk);
  const int64_t pitch = BinsPerBlock(num_experts);
  int32_t* bins = ScratchArena(context.scratch).Take<int32_t>(num_blocks * pitch);
  const auto block_at = [&](int64_t index) {
    return Block{num_tokens * index / num_blocks * topk,
                 num_tokens * (index + 1) / num_blocks * topk, bins + index * pitch};
  };

  FirstFault fault;
  const int32_t* experts = args.experts.as<int32_t>();
  context.executor->ParallelFor(
      num_blocks, [&](int64_t index, int) { Count(experts, num_experts, block_at(index), fault); });
  if (fault.found()) {
    return OutOfRange("ragged_plan: experts[token=", fault.index() / topk,
                      ", slot=", fault.index() % topk, "]=", experts[fault.index()],
                      " is out of range; an id must be -1 (routed nowhere) or in [0, ", num_experts,
                      ")");
  }
  const int64_t used = Scan(args, num_blocks, bins, pitch);
  if (used > num_rows) {
    return MakeStatus(StatusCode::kResourceExhausted, "ragged_plan: ", used,
                      " slots are routed but num_rows=", num_rows,
                      "; num_rows must be at least the number of routed slots");
  }
  context.executor->ParallelFor(num_blocks,
                                [&](int64_t index, int) { Scatter(args, block_at(index)); });
  int32_t* row_token = args.row_token.as<int32_t>();
  context.executor->ParallelFor(CeilDiv(num_rows - used, kFillPerUnit), [&](int64_t unit, int) {
    const int64_t begin = used + unit * kFillPerUnit;
    std::fill(row_token + begin, row_token + std::min(begin + kFillPerUnit, num_rows), -1);
  });
  return Status::Ok();
}

}  // namespace anabranch
