// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/planner/pipeline.h"

#include <algorithm>

namespace anabranch::sim {
namespace {

// The k-th forward pass of a stage: chunk after chunk for pp microbatches, then the next group.
std::vector<Unit> InterleavedOrder(const Layout& layout, int64_t stage, int64_t microbatches,
                                   bool backward) {
  std::vector<Unit> order;
  for (int64_t first = 0; first < microbatches; first += layout.pp) {
    const int64_t last = std::min(first + layout.pp, microbatches);
    for (int64_t turn = 0; turn < layout.vp; ++turn) {
      const int64_t chunk = backward ? layout.vp - 1 - turn : turn;
      for (int64_t microbatch = first; microbatch < last; ++microbatch) {
        Unit unit;
        unit.position = static_cast<int32_t>(chunk * layout.pp + stage);
        unit.microbatch = static_cast<int32_t>(microbatch);
        order.push_back(unit);
      }
    }
  }
  return order;
}

std::vector<Phase> OneForwardOneBackward(const Layout& layout, int64_t stage,
                                         int64_t microbatches) {
  const std::vector<Unit> forward = InterleavedOrder(layout, stage, microbatches, false);
  const std::vector<Unit> backward = InterleavedOrder(layout, stage, microbatches, true);
  const auto total = static_cast<int64_t>(forward.size());
  int64_t warmup = layout.pp - 1 - stage;
  if (layout.vp > 1) warmup = 2 * warmup + (layout.vp - 1) * layout.pp;
  if (layout.overlap) ++warmup;  // the forward pass that hides the first backward one
  warmup = std::min(warmup, total);
  std::vector<Phase> phases;
  for (int64_t k = 0; k < warmup; ++k) phases.push_back(Phase{forward[k], Unit{}});
  for (int64_t k = 0; k < total; ++k) {
    const Unit next = warmup + k < total ? forward[warmup + k] : Unit{};
    if (layout.overlap) {
      phases.push_back(Phase{next, backward[k]});
      continue;
    }
    if (next.exists()) phases.push_back(Phase{next, Unit{}});
    phases.push_back(Phase{Unit{}, backward[k]});
  }
  return phases;
}

// Greedy DualPipe: unit time steps, a backward pass takes two.
class DualPipe {
 public:
  DualPipe(const Layout& layout, int64_t microbatches)
      : stages_(static_cast<int32_t>(layout.pp)),
        half_(static_cast<int32_t>(microbatches / 2)),
        overlap_(layout.overlap != 0) {
    for (int direction = 0; direction < 2; ++direction) {
      forward_[direction].assign(stages_, std::vector<double>(half_, kNever));
      backward_[direction].assign(stages_, std::vector<double>(half_, kNever));
      next_forward_[direction].assign(stages_, 0);
      next_backward_[direction].assign(stages_, 0);
    }
  }

  std::vector<std::vector<Phase>> Order() {
    std::vector<std::vector<Phase>> phases(stages_);
    std::vector<double> free(stages_, 0);
    const int64_t wanted = static_cast<int64_t>(stages_) * 4 * half_;
    int64_t done = 0;
    // More steps than running everything one after the other takes.
    const double limit = 4.0 * static_cast<double>(wanted) + 4.0 * stages_;
    for (double now = 0; done < wanted && now < limit; now += 1) {
      for (int32_t stage = 0; stage < stages_; ++stage) {
        if (free[stage] > now) continue;
        const Phase phase = Choose(stage, now);
        const int passes = (phase.forward.exists() ? 1 : 0) + (phase.backward.exists() ? 1 : 0);
        if (passes == 0) continue;
        const double length = (phase.forward.exists() ? 1 : 0) + (phase.backward.exists() ? 2 : 0);
        Book(stage, phase, now + length);
        free[stage] = now + length;
        phases[stage].push_back(phase);
        done += passes;
      }
    }
    return phases;
  }

 private:
  static constexpr double kNever = 1e300;

  // Position of a stage along a direction, and back.
  int32_t Along(int32_t stage, int direction) const {
    return direction == 0 ? stage : stages_ - 1 - stage;
  }

  bool ForwardReady(int32_t stage, int direction, double now) const {
    const int32_t position = Along(stage, direction);
    const int32_t microbatch = next_forward_[direction][stage];
    if (microbatch >= half_) return false;
    if (position > 0 && forward_[direction][position - 1][microbatch] > now) return false;
    const int other = 1 - direction;
    const int32_t own = next_forward_[direction][stage] - next_backward_[direction][stage];
    const int32_t others = next_forward_[other][stage] - next_backward_[other][stage];
    // The other direction keeps one place, or the two would wait for each other.
    const int32_t kept = others == 0 && next_forward_[other][stage] < half_ ? 1 : 0;
    return own + others + kept <= stages_ && own <= stages_ - position;
  }

  bool BackwardReady(int32_t stage, int direction, double now) const {
    const int32_t position = Along(stage, direction);
    const int32_t microbatch = next_backward_[direction][stage];
    if (microbatch >= half_ || microbatch >= next_forward_[direction][stage]) return false;
    const auto& before =
        position + 1 < stages_ ? backward_[direction][position + 1] : forward_[direction][position];
    return before[microbatch] <= now;
  }

  Phase Choose(int32_t stage, double now) const {
    Phase phase;
    // The direction with the shorter way left goes first.
    const int near = Along(stage, 0) >= Along(stage, 1) ? 0 : 1;
    for (const int direction : {near, 1 - near}) {
      if (!phase.backward.exists() && BackwardReady(stage, direction, now)) {
        phase.backward = Unit{Along(stage, direction), next_backward_[direction][stage], direction};
      }
    }
    if (phase.backward.exists() && !overlap_) return phase;
    for (const int direction : {near, 1 - near}) {
      if (!phase.forward.exists() && ForwardReady(stage, direction, now)) {
        phase.forward = Unit{Along(stage, direction), next_forward_[direction][stage], direction};
      }
    }
    return phase;
  }

  void Book(int32_t stage, const Phase& phase, double end) {
    const Unit& forward = phase.forward;
    if (forward.exists()) {
      forward_[forward.direction][forward.position][forward.microbatch] = end;
      ++next_forward_[forward.direction][stage];
    }
    const Unit& backward = phase.backward;
    if (backward.exists()) {
      backward_[backward.direction][backward.position][backward.microbatch] = end;
      ++next_backward_[backward.direction][stage];
    }
  }

  int32_t stages_;
  int32_t half_;
  bool overlap_;
  std::vector<std::vector<double>> forward_[2], backward_[2];
  std::vector<int32_t> next_forward_[2], next_backward_[2];
};

}  // namespace

int32_t StageOf(const Layout& layout, int32_t position, int32_t direction) {
  const auto stages = static_cast<int32_t>(layout.pp);
  return direction == 0 ? position % stages : stages - 1 - position % stages;
}

std::vector<std::vector<Phase>> MakePhases(const Layout& layout, int64_t microbatches) {
  if (layout.pipeline == static_cast<int64_t>(Pipeline::kDualPipe)) {
    return DualPipe(layout, microbatches).Order();
  }
  std::vector<std::vector<Phase>> phases;
  for (int64_t stage = 0; stage < layout.pp; ++stage) {
    phases.push_back(OneForwardOneBackward(layout, stage, microbatches));
  }
  return phases;
}

}  // namespace anabranch::sim
