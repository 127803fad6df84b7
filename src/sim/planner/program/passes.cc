// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/program/builder.h"

namespace anabranch::sim {

ProgramBuilder::Passed ProgramBuilder::Forward(const Unit& unit, const Where& where,
                                               const Ids& before) {
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

ProgramBuilder::Passed ProgramBuilder::Backward(const Unit& unit, const Where& where,
                                                const Ids& before) {
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

}  // namespace anabranch::sim
