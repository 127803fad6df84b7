// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/program.h"

#include <algorithm>

#include "sim/planner/memory.h"

namespace anabranch::sim {
namespace {

using Ids = std::vector<int32_t>;

class Builder {
 public:
  Builder(const Request& request, const Costs& costs, const std::vector<ExpertCosts>& experts,
          const std::vector<Chunk>& chunks)
      : request_(request),
        layout_(request.layout),
        costs_(costs),
        experts_(experts),
        chunks_(chunks) {
    const Hardware& hardware = request.hardware;
    const double sms = static_cast<double>(hardware.sms);
    collective_share_ = static_cast<double>(hardware.collective_sms) / sms;
    fsdp_ = layout_.sharding == static_cast<int64_t>(Sharding::kFsdp);
    ports_ = MakePorts(hardware);
    dual_ = layout_.pipeline == static_cast<int64_t>(Pipeline::kDualPipe);
  }

  Program Build(const std::vector<std::vector<Phase>>& phases);

 private:
  struct Passed {  // a unit's pass: where it begins and what must end before the next stage goes on
    int32_t entry = -1;
    int32_t exit = -1;
    int32_t sent = -1;
  };
  struct Where {  // the pass that is being built
    int32_t stage;
    int32_t order;
    int32_t microbatch;
    int64_t unit;
  };

  int32_t Add(const Where& where, Stream stream, Kind kind, int64_t layer, const Ids& before);
  int32_t Compute(const Where& where, Kind kind, int64_t layer, const Work& work,
                  const Ids& before);
  int32_t Collective(const Where& where, Stream stream, Kind kind, int64_t layer,
                     const Transfer& transfer, const Ids& before);
  int32_t Copy(const Where& where, Stream stream, int64_t layer, double bytes, const Ids& before);

  Ids Tensor(const Where& where, int64_t layer, const Ids& before);
  Ids Gather(const Where& where, int64_t layer, const Ids& before);
  void Scatter(const Where& where, int64_t layer, int32_t after);
  Ids ForwardExperts(const Where& where, int64_t layer, const Ids& before, bool again);
  Ids ForwardLayer(const Where& where, int64_t layer, const Ids& before, bool again);
  Ids BackwardExperts(const Where& where, int64_t layer, const Ids& before);
  Ids BackwardLayer(const Where& where, int64_t layer, const Ids& before);
  Ids Recompute(const Where& where, int64_t layer, const Ids& before);
  Passed Forward(const Unit& unit, const Where& where, const Ids& before);
  Passed Backward(const Unit& unit, const Where& where, const Ids& before);
  void AddPhases(int32_t stage, const std::vector<Phase>& phases);
  void LinkStages();
  void StartOfStep();
  void EndOfStep();
  Transfer Reduce(double plain_bytes, double expert_bytes) const;
  bool HasExperts(int64_t layer) const { return layer >= request_.model.dense_layers; }
  int64_t UnitIndex(const Unit& unit) const {
    return (unit.direction * static_cast<int64_t>(chunks_.size()) + unit.position) * microbatches_ +
           unit.microbatch;
  }

  const Request& request_;
  const Layout& layout_;
  const Costs& costs_;
  const std::vector<ExpertCosts>& experts_;
  const std::vector<Chunk>& chunks_;
  Ports ports_;
  double collective_share_ = 0;
  bool fsdp_ = false;
  bool dual_ = false;
  int64_t microbatches_ = 0;  // of one direction
  Program program_;
  std::vector<Passed> forward_, backward_;
  std::vector<Ids> offloaded_;  // of each unit: its copies to the host, by layer
  std::vector<Ids> loose_;      // of each stage: ends nothing waits for but the step
  std::vector<Ids> wgrads_;     // of the phase being built
  Ids entry_of_layer_;          // predecessors of the layer built last, for prefetch
};

int32_t Builder::Add(const Where& where, Stream stream, Kind kind, int64_t layer,
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

int32_t Builder::Compute(const Where& where, Kind kind, int64_t layer, const Work& work,
                         const Ids& before) {
  const int32_t id = Add(where, Stream::kCompute, kind, layer, before);
  program_.tasks[id].sm_seconds = work.sm_seconds;
  program_.tasks[id].hbm_seconds = work.hbm_seconds;
  program_.tasks[id].fixed_seconds = work.fixed_seconds;
  return id;
}

int32_t Builder::Collective(const Where& where, Stream stream, Kind kind, int64_t layer,
                            const Transfer& transfer, const Ids& before) {
  // Sends between stages are launched apart from collectives in every framework.
  const bool merged = layout_.single_stream != 0 && stream != Stream::kPp;
  const int32_t id = Add(where, merged ? Stream::kEp : stream, kind, layer, before);
  Task& task = program_.tasks[id];
  task.transfer = transfer;
  const double busiest = std::max(transfer.scale_up, transfer.scale_out);
  if (busiest <= 0) return id;
  task.sm_share = collective_share_;
  // Every byte is read on one side and written on the other.
  const double bytes =
      2 * (transfer.scale_up * ports_.scale_up + transfer.scale_out * ports_.scale_out);
  task.hbm_share = bytes / busiest / request_.hardware.hbm_bandwidth;
  return id;
}

int32_t Builder::Copy(const Where& where, Stream stream, int64_t layer, double bytes,
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
Ids Builder::Tensor(const Where& where, int64_t layer, const Ids& before) {
  if (layout_.tp * layout_.cp == 1) return before;
  Transfer transfer = costs_.tensor;
  if (HasExperts(layer) && request_.model.shared_experts == 0 && layout_.cp == 1) {
    transfer = Transfer{transfer.scale_up / 2, transfer.scale_out / 2, transfer.latency / 2};
  }
  return {Collective(where, Stream::kTp, Kind::kTensor, layer, transfer, before)};
}

// One all-gather (or reduce-scatter) of plain parameters and one of experts.
Transfer Builder::Reduce(double plain_bytes, double expert_bytes) const {
  const Group plain = MakeGroup(ports_, layout_.dp() * layout_.cp, layout_.tp);
  const Group experts = MakeGroup(ports_, std::max<int64_t>(layout_.edp(), 1), layout_.ep);
  const Transfer one = AllGather(ports_, plain, plain_bytes);
  const Transfer two = AllGather(ports_, experts, expert_bytes);
  return Transfer{one.scale_up + two.scale_up, one.scale_out + two.scale_out,
                  one.latency + two.latency};
}

// FSDP: the layer's parameters, asked for while the layer before it runs.
Ids Builder::Gather(const Where& where, int64_t layer, const Ids& before) {
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

void Builder::Scatter(const Where& where, int64_t layer, int32_t after) {
  if (!fsdp_) return;
  const ChunkParameters count = CountChunk(request_, Chunk{layer, layer + 1, false, false});
  const Transfer transfer =
      Reduce(layout_.gradient_bytes * count.plain, layout_.gradient_bytes * count.experts);
  loose_[where.stage].push_back(
      Collective(where, Stream::kDp, Kind::kScatter, layer, transfer, {after}));
}

Ids Builder::ForwardExperts(const Where& where, int64_t layer, const Ids& before, bool again) {
  const ExpertCosts& expert = experts_[layer];
  const Kind kind = again ? Kind::kRecompute : Kind::kExperts;
  const bool shared = costs_.shared[kForward].Seconds() > 0;
  Ids ready = before;
  int32_t beside = -1;
  const auto add_shared = [&] {
    beside = Compute(where, Kind::kShared, layer, costs_.shared[kForward], before);
  };
  if (shared && !layout_.shared_overlap) {
    add_shared();
    ready = {beside};
  }
  if (layout_.ep > 1) {
    ready = {Collective(where, Stream::kEp, Kind::kDispatch, layer, expert.dispatch, ready)};
  }
  if (shared && layout_.shared_overlap) add_shared();
  ready = {Compute(where, kind, layer, expert.experts[kForward], ready)};
  if (layout_.ep > 1) {
    ready = {Collective(where, Stream::kEp, Kind::kCombine, layer, expert.combine, ready)};
  }
  if (beside >= 0) ready.push_back(beside);
  return ready;
}

Ids Builder::ForwardLayer(const Where& where, int64_t layer, const Ids& before, bool again) {
  Ids ready = again ? before : Gather(where, layer, before);
  ready = Tensor(where, layer, ready);
  Work work = costs_.attention[kForward];
  if (!HasExperts(layer)) work += costs_.dense[kForward];
  ready = {Compute(where, again ? Kind::kRecompute : Kind::kForward, layer, work, ready)};
  if (HasExperts(layer)) ready = ForwardExperts(where, layer, ready, again);
  if (!again && (layout_.offload & ~int64_t{kOptimizer}) != 0) {
    const double bytes = OffloadedBytes(request_, HasExperts(layer), 1);
    const int32_t copy = Copy(where, Stream::kD2h, layer, bytes, ready);
    offloaded_[where.unit].push_back(copy);
    loose_[where.stage].push_back(copy);
  }
  return ready;
}

// What the layer's backward pass needs and the forward pass did not keep.
Ids Builder::Recompute(const Where& where, int64_t layer, const Ids& before) {
  const int64_t mask = layout_.recompute;
  if (mask == 0) return before;
  if (mask & kFull) return ForwardLayer(where, layer, before, true);
  const Repeatable& repeat = costs_.repeat;
  Ids ready = before;
  Work work;
  if (mask & kNorm) work += repeat.norms;
  if (mask & kLatent) work += request_.model.mla ? repeat.latent : Work{};
  if (mask & kAttention) work += repeat.core_attention;
  if (HasExperts(layer)) {
    const ExpertCosts& expert = experts_[layer];
    if ((mask & kExpertInput) && layout_.ep > 1) {
      ready = {Collective(where, Stream::kEp, Kind::kDispatch, layer, expert.dispatch, ready)};
    }
    if (mask & kShared) work += repeat.shared_up;
    if (mask & kExpertHidden) work += expert.up;
    if (mask & (kExpertHidden | kExpertActivation)) work += expert.activation;
  } else if (mask & kDenseFfn) {
    work += repeat.dense_up;
  }
  if (work.Seconds() <= 0) return ready;
  return {Compute(where, Kind::kRecompute, layer, work, ready)};
}

Ids Builder::BackwardExperts(const Where& where, int64_t layer, const Ids& before) {
  const ExpertCosts& expert = experts_[layer];
  Ids ready = before;
  if (layout_.ep > 1) {
    ready = {Collective(where, Stream::kEp, Kind::kCombine, layer, expert.combine_grad, ready)};
  }
  if (costs_.shared[kForward].Seconds() > 0) {
    Work shared = costs_.shared[kDgrad];
    shared += costs_.shared[kWgrad];
    const int32_t task = Compute(where, Kind::kShared, layer, shared, before);
    if (layout_.shared_overlap) {
      wgrads_[where.stage].push_back(task);
    } else {
      ready.push_back(task);
    }
  }
  Work work = expert.experts[kDgrad];
  if (!layout_.split_wgrad) work += expert.experts[kWgrad];
  const int32_t experts = Compute(where, Kind::kExpertsGrad, layer, work, ready);
  ready = {experts};
  if (layout_.ep > 1) {
    ready = {Collective(where, Stream::kEp, Kind::kDispatch, layer, expert.dispatch_grad, ready)};
  }
  if (layout_.split_wgrad) {
    Where later = where;
    later.order += 2;  // whatever moves the microbatch on goes first
    wgrads_[where.stage].push_back(
        Compute(later, Kind::kWgrad, layer, expert.experts[kWgrad], {experts}));
  }
  return ready;
}

Ids Builder::BackwardLayer(const Where& where, int64_t layer, const Ids& before) {
  // Copies come back, as parameters do, while the layer before this one runs backward.
  Ids from = entry_of_layer_.empty() ? before : entry_of_layer_;
  Ids ready = Gather(where, layer, before);
  if ((layout_.offload & ~int64_t{kOptimizer}) != 0) {
    const double bytes = OffloadedBytes(request_, HasExperts(layer), 1);
    // Layers went to the host in ascending order and come back in descending order.
    Ids* copies = &offloaded_[where.unit];
    if (!copies->empty()) {
      from.push_back(copies->back());
      copies->pop_back();
    }
    ready.push_back(Copy(where, Stream::kH2d, layer, bytes, from));
  }
  ready = Recompute(where, layer, ready);
  if (HasExperts(layer)) ready = BackwardExperts(where, layer, ready);
  ready = Tensor(where, layer, ready);
  Work work = costs_.attention[kDgrad];
  Work weights = costs_.attention[kWgrad];
  if (!HasExperts(layer)) {
    work += costs_.dense[kDgrad];
    weights += costs_.dense[kWgrad];
  }
  if (!layout_.split_wgrad) work += weights;
  const int32_t task = Compute(where, Kind::kBackward, layer, work, ready);
  int32_t last = task;
  if (layout_.split_wgrad) {
    Where later = where;
    later.order += 2;
    last = Compute(later, Kind::kWgrad, layer, weights, {task});
    wgrads_[where.stage].push_back(last);
  }
  Scatter(where, layer, last);
  return {task};
}

Builder::Passed Builder::Forward(const Unit& unit, const Where& where, const Ids& before) {
  const Chunk& chunk = chunks_[unit.position];
  const auto first = static_cast<int32_t>(program_.tasks.size());
  // Every pass begins with a task of its own, which later stages and memory refer to.
  Ids ready = {Compute(where, Kind::kForward, chunk.first,
                       chunk.embedding ? costs_.embedding : Work{}, before)};
  entry_of_layer_.clear();
  for (int64_t layer = chunk.first; layer < chunk.last; ++layer) {
    ready = ForwardLayer(where, layer, ready, false);
  }
  if (chunk.head) {
    for (int64_t i = 0; i < request_.model.mtp_layers; ++i) {
      const int64_t layer = request_.model.layers;
      ready = {Compute(where, Kind::kForward, layer, costs_.mtp[kForward], ready)};
      ready = ForwardLayer(where, layer, ready, false);
      ready = {Compute(where, Kind::kHead, layer, costs_.head[kForward], ready)};
    }
    ready = {Compute(where, Kind::kHead, chunk.last, costs_.head[kForward], ready)};
  }
  if (ready.size() > 1) ready = {Compute(where, Kind::kForward, chunk.last, Work{}, ready)};
  Passed passed{first, ready[0], -1};
  if (unit.position + 1 < static_cast<int32_t>(chunks_.size()) && layout_.pp > 1) {
    passed.sent =
        Collective(where, Stream::kPp, Kind::kSend, chunk.last, costs_.send, {passed.exit});
  }
  return passed;
}

Builder::Passed Builder::Backward(const Unit& unit, const Where& where, const Ids& before) {
  const Chunk& chunk = chunks_[unit.position];
  const auto first = static_cast<int32_t>(program_.tasks.size());
  Work head;
  if (chunk.head) {
    head = costs_.head[kDgrad];
    head += costs_.head[kWgrad];
  }
  Ids ready = {
      Compute(where, chunk.head ? Kind::kHead : Kind::kBackward, chunk.last, head, before)};
  entry_of_layer_.clear();
  if (chunk.head) {
    for (int64_t i = 0; i < request_.model.mtp_layers; ++i) {
      const int64_t layer = request_.model.layers;
      ready = {Compute(where, Kind::kHead, layer, head, ready)};
      ready = BackwardLayer(where, layer, ready);
      Work join = costs_.mtp[kDgrad];
      join += costs_.mtp[kWgrad];
      ready = {Compute(where, Kind::kBackward, layer, join, ready)};
    }
  }
  for (int64_t layer = chunk.last; layer-- > chunk.first;) {
    ready = BackwardLayer(where, layer, ready);
  }
  Passed passed{first, ready[0], -1};
  if (unit.position > 0 && layout_.pp > 1) {
    passed.sent =
        Collective(where, Stream::kPp, Kind::kSend, chunk.first, costs_.send, {passed.exit});
  }
  return passed;
}

void Builder::AddPhases(int32_t stage, const std::vector<Phase>& phases) {
  Ids before;      // ends of the phase before
  Ids old_wgrads;  // weight gradients may lag one phase, no more: they hold activations
  int32_t order = 0;
  for (const Phase& phase : phases) {
    Ids ready = before;
    ready.insert(ready.end(), old_wgrads.begin(), old_wgrads.end());
    old_wgrads = wgrads_[stage];
    wgrads_[stage].clear();
    before.clear();
    order += 1;
    if (phase.forward.exists()) {
      const int64_t index = UnitIndex(phase.forward);
      const Where where{stage, order, phase.forward.microbatch, index};
      forward_[index] = Forward(phase.forward, where, ready);
      before.push_back(forward_[index].exit);
    }
    if (phase.backward.exists()) {
      const int64_t index = UnitIndex(phase.backward);
      const Where where{stage, order, phase.backward.microbatch, index};
      backward_[index] = Backward(phase.backward, where, ready);
      before.push_back(backward_[index].exit);
      program_.lifetimes.push_back(
          Lifetime{stage, phase.backward.position, forward_[index].entry, backward_[index].exit});
    }
  }
  for (const Ids* ends : {&before, &old_wgrads, &wgrads_[stage]}) {
    loose_[stage].insert(loose_[stage].end(), ends->begin(), ends->end());
  }
}

// A pass waits for the neighbouring chunk's; the last chunk's backward pass for its own forward.
void Builder::LinkStages() {
  const auto link = [&](const Passed& from, const Passed& to) {
    if (from.entry < 0 || to.entry < 0) return;
    program_.edges.emplace_back(from.sent >= 0 ? from.sent : from.exit, to.entry);
  };
  const auto chunks = static_cast<int64_t>(chunks_.size());
  for (int64_t run = 0; run < (dual_ ? 2 : 1); ++run) {
    for (int64_t position = 0; position < chunks; ++position) {
      for (int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
        const int64_t at = (run * chunks + position) * microbatches_ + microbatch;
        if (position > 0) link(forward_[at - microbatches_], forward_[at]);
        if (position + 1 < chunks) {
          link(backward_[at + microbatches_], backward_[at]);
        } else if (forward_[at].entry >= 0 && backward_[at].entry >= 0) {
          program_.edges.emplace_back(forward_[at].exit, backward_[at].entry);
        }
      }
    }
  }
}

// ZeRO-1 hands out the new parameters when the next step first needs them: before a chunk's first
// forward pass.
void Builder::StartOfStep() {
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
void Builder::EndOfStep() {
  Ids sums;
  std::vector<double> parameters(static_cast<size_t>(layout_.pp), 0);
  const bool sharded = layout_.sharding != static_cast<int64_t>(Sharding::kNone);
  for (int64_t run = 0; run < (dual_ ? 2 : 1); ++run) {
    for (size_t position = 0; position < chunks_.size(); ++position) {
      const ChunkParameters count = CountChunk(request_, chunks_[position]);
      const int32_t stage =
          StageOf(layout_, static_cast<int32_t>(position), static_cast<int32_t>(run));
      parameters[stage] +=
          sharded ? count.plain / PlainShards(layout_) + count.experts / ExpertShards(layout_)
                  : count.plain + count.experts;
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
    Work work;
    work.fixed_seconds = OptimizerSeconds(request_, parameters[stage]);
    const Where where{stage, 1 << 30, 0, 0};
    Compute(where, Kind::kOptimizer, 0, work, {norm});
  }
}

Program Builder::Build(const std::vector<std::vector<Phase>>& phases) {
  for (const auto& stage : phases) {
    for (const Phase& phase : stage) {
      microbatches_ = std::max({microbatches_, int64_t{phase.forward.microbatch} + 1,
                                int64_t{phase.backward.microbatch} + 1});
    }
  }
  const size_t units = 2 * chunks_.size() * static_cast<size_t>(microbatches_);
  forward_.resize(units);
  backward_.resize(units);
  offloaded_.resize(units);
  loose_.resize(static_cast<size_t>(layout_.pp));
  wgrads_.resize(static_cast<size_t>(layout_.pp));
  for (size_t stage = 0; stage < phases.size(); ++stage) {
    AddPhases(static_cast<int32_t>(stage), phases[stage]);
  }
  LinkStages();
  StartOfStep();
  EndOfStep();
  return std::move(program_);
}

// Seconds of one layer, forward and backward, for the cut into chunks.
double LayerSeconds(const Request& request, const Costs& costs, const ExpertCosts* experts) {
  double seconds = 0;
  for (const Work& work : costs.attention) seconds += work.Seconds();
  if (experts == nullptr) {
    for (const Work& work : costs.dense) seconds += work.Seconds();
    return seconds;
  }
  for (const Work& work : costs.shared) seconds += work.Seconds();
  for (const Work& work : experts->experts) seconds += work.Seconds();
  if (request.layout.ep > 1 && !request.layout.overlap) {
    seconds += 2 * (experts->dispatch.Seconds() + experts->combine.Seconds());
  }
  return seconds;
}

}  // namespace

std::vector<Chunk> MakeChunks(const Request& request, const Costs& costs,
                              const std::vector<ExpertCosts>& experts) {
  const Model& model = request.model;
  const auto count = static_cast<size_t>(request.layout.pp * request.layout.vp);
  std::vector<double> seconds;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    seconds.push_back(
        LayerSeconds(request, costs, layer < model.dense_layers ? nullptr : &experts[layer]));
  }
  double tail = 0;
  for (const Work& work : costs.head) tail += work.Seconds();
  tail *= static_cast<double>(1 + model.mtp_layers);
  if (model.mtp_layers > 0) tail += LayerSeconds(request, costs, &experts[model.layers]);
  // Greedy under a limit of seconds and of layers (no chunk has more than an even split's longest,
  // as frameworks demand); leaves a layer for every later chunk while there are enough.
  const auto chunks_wanted = static_cast<int64_t>(count);
  const int64_t longest = (model.layers + chunks_wanted - 1) / chunks_wanted;
  const auto cut = [&](double limit, std::vector<Chunk>* chunks) {
    chunks->assign(count, Chunk{});
    int64_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      Chunk& chunk = (*chunks)[i];
      chunk.first = next;
      double sum = i + 1 == count ? tail : 0;
      const int64_t later = static_cast<int64_t>(count - i - 1);
      while (next < model.layers - later && next - chunk.first < longest &&
             (sum + seconds[next] <= limit || (chunk.first == next && i + 1 < count))) {
        sum += seconds[next++];
      }
      chunk.last = next;
    }
    return next == model.layers;
  };
  double low = 0;
  double high = tail;
  for (const double each : seconds) high += each;
  std::vector<Chunk> chunks;
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (cut(middle, &chunks) ? high : low) = middle;
  }
  cut(high * (1 + 1e-9), &chunks);
  chunks.front().embedding = true;
  chunks.back().head = true;
  return chunks;
}

Program MakeProgram(const Request& request, const Costs& costs,
                    const std::vector<ExpertCosts>& experts, const std::vector<Chunk>& chunks,
                    const std::vector<std::vector<Phase>>& phases) {
  return Builder(request, costs, experts, chunks).Build(phases);
}

}  // namespace anabranch::sim
