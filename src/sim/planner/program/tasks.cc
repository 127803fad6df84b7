// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/planner/memory.h"
#include "sim/planner/program/builder.h"

namespace anabranch::sim {

int32_t ProgramBuilder::Add(const Where& where, Stream stream, Kind kind, int64_t layer,
                            const Ids& before) {
  const auto id = static_cast<int32_t>(program_.tasks.size());
  Task task;
  task.rank_class = where.stage;
  task.stream = stream;
  task.order = where.order;
  program_.tasks.push_back(task);
  program_.labels.push_back(Label{kind, static_cast<int32_t>(layer), where.microbatch});
  for (const int32_t other : before) {
    if (other >= 0) program_.edges.emplace_back(other, id);
  }
  return id;
}

int32_t ProgramBuilder::Compute(const Where& where, Kind kind, int64_t layer, const Work& work,
                                const Ids& before) {
  const int32_t id = Add(where, Stream::kCompute, kind, layer, before);
  program_.tasks[id].sm_seconds = work.sm_seconds;
  program_.tasks[id].hbm_seconds = work.hbm_seconds;
  program_.tasks[id].fixed_seconds = work.fixed_seconds;
  return id;
}

int32_t ProgramBuilder::Collective(const Where& where, Stream stream, Kind kind, int64_t layer,
                                   const Transfer& transfer, const Ids& before) {
  // Sends between stages are launched apart from collectives in every framework.
  const bool merged = layout_.single_stream != 0 && stream != Stream::kPp;
  const int32_t id = Add(where, merged ? Stream::kEp : stream, kind, layer, before);
  Task& task = program_.tasks[id];
  task.transfer = transfer;
  const double busiest = std::max(transfer.scale_up, transfer.scale_out);
  if (busiest <= 0) return id;
  task.sm_share = collective_share_;
  // Every byte is read on one side and written on the other, none while the latency lasts: what the
  // collective costs compute does not grow when its bytes get faster.
  const double bytes =
      2 * (transfer.scale_up * ports_.scale_up + transfer.scale_out * ports_.scale_out);
  task.hbm_share = bytes / transfer.Seconds() / request_.hardware.hbm_bandwidth;
  return id;
}

int32_t ProgramBuilder::Copy(const Where& where, Stream stream, int64_t layer, double bytes,
                             const Ids& before) {
  const Kind kind = stream == Stream::kD2h ? Kind::kOffload : Kind::kReload;
  const int32_t id = Add(where, stream, kind, layer, before);
  const double link = request_.hardware.host_bandwidth * request_.hardware.host_efficiency;
  program_.tasks[id].fixed_seconds = bytes / link;
  program_.tasks[id].hbm_share = link / request_.hardware.hbm_bandwidth;
  return id;
}

// Tensor- and context-parallel collectives of one layer and pass. An expert layer without a shared
// expert gathers round attention alone.
Ids ProgramBuilder::Tensor(const Where& where, int64_t layer, const Ids& before) {
  if (layout_.tp * layout_.cp == 1) return before;
  Transfer transfer = costs_.tensor;
  if (HasExperts(layer) && request_.model.shared_experts == 0 && layout_.cp == 1) {
    transfer = Transfer{transfer.scale_up / 2, transfer.scale_out / 2, transfer.latency / 2};
  }
  return {Collective(where, Stream::kTp, Kind::kTensor, layer, transfer, before)};
}

// One all-gather (or reduce-scatter) of plain parameters and one of experts.
Transfer ProgramBuilder::Reduce(double plain_bytes, double expert_bytes) const {
  const Group plain = MakeGroup(ports_, layout_.dp() * layout_.cp, layout_.tp);
  const Group experts = MakeGroup(ports_, std::max<int64_t>(layout_.edp(), 1), layout_.ep);
  const Transfer one = AllGather(ports_, plain, plain_bytes);
  const Transfer two = AllGather(ports_, experts, expert_bytes);
  return Transfer{one.scale_up + two.scale_up, one.scale_out + two.scale_out,
                  one.latency + two.latency};
}

// FSDP: the layer's parameters, asked for while the layer before it runs.
Ids ProgramBuilder::Gather(const Where& where, int64_t layer, const Ids& before) {
  Ids ready = before;
  if (fsdp_) {
    const ChunkParameters count = CountChunk(request_, Chunk{layer, layer + 1, false, false});
    const Transfer transfer = Reduce(2 * count.plain, 2 * count.experts);
    ready.push_back(Collective(where, Stream::kDp, Kind::kGather, layer, transfer,
                               entry_of_layer_.empty() ? before : entry_of_layer_));
  }
  entry_of_layer_ = before;
  return ready;
}

void ProgramBuilder::Scatter(const Where& where, int64_t layer, int32_t after) {
  if (!fsdp_) return;
  const ChunkParameters count = CountChunk(request_, Chunk{layer, layer + 1, false, false});
  const Transfer transfer =
      Reduce(layout_.gradient_bytes * count.plain, layout_.gradient_bytes * count.experts);
  loose_[where.stage].push_back(
      Collective(where, Stream::kDp, Kind::kScatter, layer, transfer, {after}));
}

}  // namespace anabranch::sim
