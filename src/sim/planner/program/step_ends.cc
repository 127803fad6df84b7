// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/memory.h"
#include "sim/planner/optimizer.h"
#include "sim/planner/program/builder.h"

namespace anabranch::sim {

// ZeRO-1 hands out the new parameters when the next step first needs them: before a chunk's first
// forward pass.
void ProgramBuilder::StartOfStep() {
  if (layout_.sharding != static_cast<int64_t>(Sharding::kZero1)) return;
  for (int64_t run = 0; run < (dual_ ? 2 : 1); ++run) {
    for (size_t position = 0; position < chunks_.size(); ++position) {
      const ChunkParameters count = CountChunk(request_, chunks_[position]);
      const Transfer transfer = Reduce(2 * count.plain, 2 * count.experts);
      if (transfer.Seconds() <= 0) continue;
      const auto at = static_cast<int32_t>(position);
      const int32_t stage = StageOf(layout_, at, static_cast<int32_t>(run));
      const Where where{stage, 0, 0, 0};
      const int32_t gather =
          Collective(where, Stream::kDp, Kind::kGather, chunks_[position].first, transfer, {});
      const int64_t unit = (run * static_cast<int64_t>(chunks_.size()) + at) * microbatches_;
      if (forward_[unit].entry >= 0) program_.edges.emplace_back(gather, forward_[unit].entry);
    }
  }
}

// Gradients are summed when a chunk's last backward pass has ended; the optimizer needs the norm of
// all of them.
void ProgramBuilder::EndOfStep() {
  Ids sums;
  std::vector<double> parameters(static_cast<size_t>(layout_.pp), 0);
  std::vector<double> matrix_flops(static_cast<size_t>(layout_.pp), 0);
  const bool sharded = layout_.sharding != static_cast<int64_t>(Sharding::kNone);
  for (int64_t run = 0; run < (dual_ ? 2 : 1); ++run) {
    for (size_t position = 0; position < chunks_.size(); ++position) {
      const ChunkParameters count = CountChunk(request_, chunks_[position]);
      const int32_t stage =
          StageOf(layout_, static_cast<int32_t>(position), static_cast<int32_t>(run));
      parameters[stage] +=
          sharded ? count.plain / PlainShards(layout_) + count.experts / ExpertShards(layout_)
                  : count.plain + count.experts;
      // Sharded states: every rank iterates on its share of the matrices, each of them whole.
      const MatrixFlops matrices = MuonMatrixFlops(request_, chunks_[position]);
      matrix_flops[stage] +=
          sharded ? matrices.plain / PlainShards(layout_) + matrices.experts / ExpertShards(layout_)
                  : matrices.plain + matrices.experts;
      if (fsdp_) continue;
      Transfer transfer =
          Reduce(layout_.gradient_bytes * count.plain, layout_.gradient_bytes * count.experts);
      // Without sharding the sum is handed to everyone: an all-reduce.
      if (!sharded) {
        transfer = Transfer{2 * transfer.scale_up, 2 * transfer.scale_out, 2 * transfer.latency};
      }
      const int64_t chunk =
          run * static_cast<int64_t>(chunks_.size()) + static_cast<int64_t>(position);
      const int64_t unit = (chunk + 1) * microbatches_ - 1;
      const Where where{stage, 1 << 29, 0, 0};
      Ids before = {backward_[unit].exit};
      if (layout_.split_wgrad)
        before.insert(before.end(), loose_[stage].begin(), loose_[stage].end());
      sums.push_back(Collective(where, Stream::kDp, Kind::kScatter, chunks_[position].first,
                                transfer, before));
    }
  }
  for (const Ids& ends : loose_) sums.insert(sums.end(), ends.begin(), ends.end());
  const Where first{0, 1 << 29, 0, 0};
  const int32_t norm = Compute(first, Kind::kOptimizer, 0, Work{}, sums);
  for (int32_t stage = 0; stage < static_cast<int32_t>(layout_.pp); ++stage) {
    const Where where{stage, 1 << 30, 0, 0};
    Compute(where, Kind::kOptimizer, 0,
            OptimizerWork(request_, parameters[stage], matrix_flops[stage]), {norm});
  }
}

}  // namespace anabranch::sim
