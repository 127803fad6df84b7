// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/memory.h"
#include "sim/planner/program/builder.h"

namespace anabranch::sim {

Ids ProgramBuilder::ForwardExperts(const Where& where, int64_t layer, const Ids& before,
                                   bool again) {
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

Ids ProgramBuilder::ForwardLayer(const Where& where, int64_t layer, const Ids& before, bool again) {
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
Ids ProgramBuilder::Recompute(const Where& where, int64_t layer, const Ids& before) {
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

Ids ProgramBuilder::BackwardExperts(const Where& where, int64_t layer, const Ids& before) {
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

Ids ProgramBuilder::BackwardLayer(const Where& where, int64_t layer, const Ids& before) {
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

}  // namespace anabranch::sim
