// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/pack_experts/pack_experts.h"

namespace anabranch {
namespace {

struct Scratch {
  const void** pointers;  // [workers][stride]
  int64_t stride;
  int64_t bytes;
};

Scratch LayOut(const PackExpertsArgs& args, int num_workers, void* block) {
  ScratchArena arena(block);
  Scratch scratch;
  const int64_t pointers = ExpertPanelPointers(args.w_gate.size(1), args.w_gate.size(2));
  scratch.stride = RoundUp(pointers, kCacheLineBytes / static_cast<int64_t>(sizeof(void*)));
  scratch.pointers = arena.Take<const void*>(num_workers * scratch.stride);
  scratch.bytes = arena.used_bytes();
  return scratch;
}

Status CheckPanels(const char* op, const char* name, const ConstTensorView& view, ExpertPanel kind,
                   int64_t experts, int64_t hidden, int64_t width) {
  const ExpertPanelShape shape = ShapeOf(kind, DType::kBF16, hidden, width);
  if (view.dtype() == DType::kBF16 &&
      view.HasShape({experts, shape.panels, 2 * shape.words, tile::kPanelColumns})) {
    return Status::Ok();
  }
  return InvalidArgument(op, ": ", name, " is ", view.ToString(), "; must be bf16[", experts, ",",
                         shape.panels, ",", 2 * shape.words, ",", tile::kPanelColumns,
                         "] for experts [", experts, ",", hidden, ",", width, "]");
}

Status CheckWeights(const PackExpertsArgs& args) {
  const ConstTensorView& gate = args.w_gate;
  const int64_t experts = gate.size(0), hidden = gate.size(1), width = gate.size(2);
  const bool fits = gate.rank() == 3 && gate.dtype() != DType::kI32 &&
                    args.w_up.HasShape({experts, hidden, width}) &&
                    args.w_down.HasShape({experts, width, hidden}) &&
                    args.w_up.dtype() == gate.dtype() && args.w_down.dtype() == gate.dtype();
  if (fits) return Status::Ok();
  return InvalidArgument("pack_experts: w_gate is ", gate.ToString(), ", w_up ",
                         args.w_up.ToString(), ", w_down ", args.w_down.ToString(),
                         "; must be [E,H,F], [E,H,F] and [E,F,H], all bf16 or all f32");
}

struct Target {
  ExpertPanel kind;
  TensorView view;
};

// Panel `index` of one expert, counted through all four kinds.
void PackOne(const PackExpertsArgs& args, const Target (&targets)[kNumExpertPanelKinds],
             int64_t expert, int64_t index, const void** pointers) {
  for (const Target& target : targets) {
    const int64_t panels = target.view.size(1);
    if (index < panels) {
      const int64_t panel_elements = target.view.size(2) * tile::kPanelColumns;
      BF16* out = target.view.as<BF16>() + (expert * panels + index) * panel_elements;
      return PackExpertPanel({args.w_gate, args.w_up, args.w_down}, target.kind, DType::kBF16,
                             expert, index, pointers, reinterpret_cast<uint32_t*>(out));
    }
    index -= panels;
  }
}

}  // namespace

Status CheckForwardPanels(const char* op, const PackedExperts& packed, int64_t experts,
                          int64_t hidden, int64_t width) {
  ANABRANCH_RETURN_IF_ERROR(CheckPanels(op, "packed gate_up", packed.gate_up, ExpertPanel::kGateUp,
                                        experts, hidden, width));
  return CheckPanels(op, "packed down", packed.down, ExpertPanel::kDown, experts, hidden, width);
}

Status CheckGradientPanels(const char* op, const PackedExperts& packed, int64_t experts,
                           int64_t hidden, int64_t width) {
  ANABRANCH_RETURN_IF_ERROR(CheckPanels(op, "packed down_transposed", packed.down_transposed,
                                        ExpertPanel::kDownTransposed, experts, hidden, width));
  return CheckPanels(op, "packed gate_up_transposed", packed.gate_up_transposed,
                     ExpertPanel::kGateUpTransposed, experts, hidden, width);
}

int64_t PackExpertsScratchBytes(const PackExpertsArgs& args, int num_workers) {
  return LayOut(args, num_workers, nullptr).bytes;
}

Status PackExperts(const PackExpertsArgs& args, Context& context) {
  ANABRANCH_RETURN_IF_ERROR(CheckWeights(args));
  const int64_t experts = args.w_gate.size(0), hidden = args.w_gate.size(1);
  const int64_t width = args.w_gate.size(2);
  const PackedExperts packed = {args.packed.gate_up, args.packed.down, args.packed.down_transposed,
                                args.packed.gate_up_transposed};
  ANABRANCH_RETURN_IF_ERROR(CheckForwardPanels("pack_experts", packed, experts, hidden, width));
  ANABRANCH_RETURN_IF_ERROR(CheckGradientPanels("pack_experts", packed, experts, hidden, width));
  const Scratch scratch = LayOut(args, context.executor->num_workers(), context.scratch);
  if (context.scratch == nullptr || scratch.bytes > context.scratch_bytes) {
    return InvalidArgument("pack_experts: scratch is ", context.scratch_bytes, " bytes; needs ",
                           scratch.bytes);
  }
  const Target targets[kNumExpertPanelKinds] = {
      {ExpertPanel::kGateUp, args.packed.gate_up},
      {ExpertPanel::kDown, args.packed.down},
      {ExpertPanel::kDownTransposed, args.packed.down_transposed},
      {ExpertPanel::kGateUpTransposed, args.packed.gate_up_transposed}};
  int64_t panels = 0;
  for (const Target& target : targets) panels += target.view.size(1);
  // An expert's panels follow each other: they read the same rows again.
  context.executor->ParallelFor(experts * panels, [&](int64_t unit, int worker) {
    PackOne(args, targets, unit / panels, unit % panels,
            scratch.pointers + worker * scratch.stride);
  });
  return Status::Ok();
}

}  // namespace anabranch
