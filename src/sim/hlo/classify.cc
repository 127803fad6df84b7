// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo/classify.h"

#include <algorithm>
#include <array>

#include "sim/hlo/text.h"

namespace anabranch::sim::hlo {
namespace {

constexpr std::array<std::string_view, 8> kCollectives = {
    "all-gather",        "all-reduce",           "reduce-scatter",     "all-to-all",
    "ragged-all-to-all", "collective-broadcast", "collective-permute", "collective-groups"};
constexpr std::array<std::string_view, 7> kNoOps = {
    "get-tuple-element", "bitcast", "constant", "parameter", "tuple", "partition-id", "replica-id"};

template <typename Names>
bool Contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view WithoutSuffix(std::string_view opcode) {
  for (const std::string_view suffix : {"-start", "-done", "-update"}) {
    if (opcode.ends_with(suffix)) return opcode.substr(0, opcode.size() - suffix.size());
  }
  return opcode;
}

bool IsStart(std::string_view opcode) {
  return opcode.ends_with("-start") || opcode == "send" || opcode == "recv";
}

// XLA writes "is_sync":true into the start's backend_config when nothing was found to overlap.
bool IsSynchronous(const Instruction& start) {
  return start.attribute("backend_config").find("\"is_sync\":true") != std::string_view::npos;
}

}  // namespace

const Instruction& WrappedInstruction(const HloModule& module, const Instruction& instruction) {
  if (!instruction.opcode.starts_with("async-") || instruction.called.empty()) return instruction;
  const Computation& wrapped = module.computations[instruction.called.front()];
  return wrapped.root < 0 ? instruction : wrapped.instructions[wrapped.root];
}

std::string_view InnerOpcode(const HloModule& module, const Instruction& instruction) {
  return WithoutSuffix(WrappedInstruction(module, instruction).opcode);
}

bool IsCollectiveOpcode(std::string_view opcode) { return Contains(kCollectives, opcode); }

NodeRole RoleOf(const HloModule& module, const Computation& computation, const Instruction& i) {
  if (Contains(kNoOps, i.opcode)) return NodeRole::kNoOp;
  if (IsStart(i.opcode)) {
    const bool collective = IsCollectiveOpcode(InnerOpcode(module, i));
    return collective && IsSynchronous(i) ? NodeRole::kPlain : NodeRole::kStart;
  }
  if (!i.opcode.ends_with("-done")) return NodeRole::kPlain;
  const int start = StartOf(computation, i);
  if (start < 0) return NodeRole::kDone;
  return RoleOf(module, computation, computation.instructions[start]) == NodeRole::kStart
             ? NodeRole::kDone
             : NodeRole::kPlain;
}

AsyncResource ResourceOf(const HloModule& module, const Instruction& instruction) {
  const std::string_view inner = InnerOpcode(module, instruction);
  if (IsCollectiveOpcode(inner) || IsCustomCollective(instruction)) {
    return AsyncResource::kCollective;
  }
  return inner == "send" || inner == "recv" ? AsyncResource::kPointToPoint
                                            : AsyncResource::kAsyncCompute;
}

int StartOf(const Computation& computation, const Instruction& done) {
  const Instruction* at = &done;
  while (!at->operands.empty()) {
    const int number = at->operands.front();
    at = &computation.instructions[number];
    if (IsStart(at->opcode)) return number;
    if (!at->opcode.ends_with("-update")) return -1;
  }
  return -1;
}

bool RunsComputations(const Instruction& instruction) {
  return instruction.opcode == "while" || instruction.opcode == "call" ||
         instruction.opcode == "conditional";
}

bool CopiesToHost(const HloModule& module, const Instruction& start) {
  const Shape& shape = WrappedInstruction(module, start).shape;
  // copy-start gives (destination, source, context).
  return IsOnHost(shape.elements.empty() ? shape : shape.elements.front());
}

bool IsCustomCollective(const Instruction& instruction) {
  return FrontendAttribute(instruction, "_xla_stream_annotation") == "collective";
}

int64_t TripCount(const Instruction& loop) {
  const std::string_view config = loop.attribute("backend_config");
  size_t at = config.find("known_trip_count");
  if (at == std::string_view::npos) return 1;
  at = config.find_first_of("0123456789", at);
  if (at == std::string_view::npos) return 1;
  std::string_view number = config.substr(at);
  int64_t count = 1;
  return ReadInteger(&number, &count) ? count : 1;
}

std::string_view FrontendAttribute(const Instruction& instruction, std::string_view key) {
  std::string_view text = instruction.attribute("frontend_attributes");
  if (text.size() < 2) return {};
  for (const std::string_view part : SplitTopLevel(text.substr(1, text.size() - 2))) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || Trim(part.substr(0, equals)) != key) continue;
    std::string_view value = Trim(part.substr(equals + 1));
    if (value.size() >= 2 && value.front() == '"') value = value.substr(1, value.size() - 2);
    return value;
  }
  return {};
}

}  // namespace anabranch::sim::hlo
