// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo_step/hlo_graph.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "sim/hlo/classify.h"
#include "sim/hlo/device_groups.h"
#include "sim/hlo/text.h"

namespace anabranch::sim::hlo {
namespace {

constexpr double kHighLatency = 5000;
constexpr double kHighCost = 5000;
constexpr double kMediumCost = 1000;
constexpr double kLowCost = 1;

double DefaultCost(const HloModule& module, const Computation& computation, const Instruction& i) {
  if (RoleOf(module, computation, i) == NodeRole::kNoOp || i.opcode == "opt-barrier") return 0;
  if (i.opcode == "custom-call") {
    std::string_view stated = FrontendAttribute(i, "latency_metadata");
    int64_t nanoseconds = 0;
    return ReadInteger(&stated, &nanoseconds) ? static_cast<double>(nanoseconds) : kMediumCost;
  }
  if (i.opcode == "convolution") return kHighCost;
  if (i.opcode != "fusion") return kLowCost;
  const std::string_view kind = i.attribute("kind");
  return kind == "kLoop" ? kMediumCost : kind == "kOutput" ? kHighCost : kLowCost;
}

// Opcodes whose result is their operand's memory.
constexpr std::array<std::string_view, 6> kAliases = {
    "bitcast", "get-tuple-element", "tuple", "opt-barrier", "while", "call"};

bool IsAlias(const Instruction& i) {
  return std::find(kAliases.begin(), kAliases.end(), i.opcode) != kAliases.end() ||
         i.opcode.ends_with("-done") || i.opcode.ends_with("-update");
}

// Which buffers each instruction defines and uses. Arguments and constants are no temporaries.
void AddBuffers(const Computation& computation, ScheduleGraph* graph) {
  std::vector<std::vector<int>> carried(computation.instructions.size());
  for (size_t n = 0; n < computation.instructions.size(); ++n) {
    const Instruction& i = computation.instructions[n];
    GraphNode& node = graph->nodes[n];
    for (const int operand : i.operands) {
      node.uses.insert(node.uses.end(), carried[operand].begin(), carried[operand].end());
    }
    std::sort(node.uses.begin(), node.uses.end());
    node.uses.erase(std::unique(node.uses.begin(), node.uses.end()), node.uses.end());
    if (IsAlias(i)) {
      carried[n] = node.uses;
    } else if (i.opcode != "parameter" && i.opcode != "constant" && !IsOnHost(i.shape)) {
      node.defines.push_back(static_cast<int>(graph->buffer_bytes.size()));
      graph->buffer_bytes.push_back(static_cast<int64_t>(ByteSize(i.shape)));
      carried[n] = node.defines;
    }
  }
}

// Data dependencies once each, then control dependencies, in the order of the nodes they come from.
std::vector<int> Predecessors(const Instruction& i) {
  std::vector<std::pair<int, bool>> edges;
  for (const int operand : i.operands) edges.emplace_back(operand, false);
  for (const int before : i.control_predecessors) edges.emplace_back(before, true);
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<int> result;
  result.reserve(edges.size());
  for (const auto& [node, control] : edges) result.push_back(node);
  return result;
}

ResourceCounts InnerResources(const Instruction& i, const std::vector<ResourceCounts>& inner) {
  ResourceCounts most{};
  if (!RunsComputations(i)) return most;
  for (const int called : i.called) {
    for (int r = 0; r < kNumAsyncResources; ++r) most[r] = std::max(most[r], inner[called][r]);
  }
  return most;
}

void Visit(const HloModule& module, int computation, std::vector<bool>* seen,
           std::vector<int>* result) {
  if ((*seen)[computation]) return;
  (*seen)[computation] = true;
  for (const Instruction& i : module.computations[computation].instructions) {
    if (!RunsComputations(i)) continue;
    for (const int called : i.called) Visit(module, called, seen, result);
  }
  result->push_back(computation);
}

}  // namespace

std::vector<InstructionTimes> DefaultTimes(const HloModule& module,
                                           const Computation& computation) {
  std::vector<InstructionTimes> times;
  times.reserve(computation.instructions.size());
  for (const Instruction& i : computation.instructions) {
    times.push_back({DefaultCost(module, computation, i), kHighLatency});
  }
  return times;
}

Status BuildHloGraph(const HloModule& module, const Computation& computation,
                     const std::vector<InstructionTimes>& times, const GraphOptions& options,
                     const std::vector<ResourceCounts>& inner, HloGraph* result) {
  const size_t count = computation.instructions.size();
  result->graph = ScheduleGraph();
  result->groups.assign(count, {});
  result->graph.nodes.resize(count);
  for (size_t n = 0; n < count; ++n) {
    const Instruction& i = computation.instructions[n];
    GraphNode& node = result->graph.nodes[n];
    node.name = i.name;
    node.role = RoleOf(module, computation, i);
    node.cost = times[n].cost;
    node.predecessors = Predecessors(i);
    node.inner_resources = InnerResources(i, inner);
    // XLA's names are seen from the end, where its scheduler begins.
    const std::string_view hint = FrontendAttribute(i, "scheduler_hint");
    node.place_early = hint == "force_early";
    node.place_late = hint == "force_delay" ||
                      i.attribute("backend_config").find("\"force_earliest_schedule\":true") !=
                          std::string_view::npos;
    if (node.role == NodeRole::kStart) {
      node.place_late = node.place_late || CopiesToHost(module, i);
      node.resource = ResourceOf(module, i);
      node.opaque = IsCustomCollective(i);
      if (node.resource == AsyncResource::kCollective && !node.opaque) {
        ANABRANCH_RETURN_IF_ERROR(CollectiveGroups(WrappedInstruction(module, i),
                                                   options.num_devices, &result->groups[n]));
        node.groups = &result->groups[n];
        const int64_t domain = options.scale_up_domain;
        const GroupExtent extent = ExtentOf(result->groups[n], std::max<int64_t>(domain, 1));
        if (domain > 1 && extent.in_domain == extent.size) {
          node.resource = AsyncResource::kScaleUpCollective;
        }
      }
    } else if (node.role == NodeRole::kDone) {
      node.start = StartOf(computation, i);
      node.resource =
          node.start >= 0 ? result->graph.nodes[node.start].resource : ResourceOf(module, i);
      if (node.start >= 0) node.latency = times[node.start].latency;
    }
  }
  AddBuffers(computation, &result->graph);
  return Status::Ok();
}

std::vector<int> ScheduledComputations(const HloModule& module) {
  std::vector<bool> seen(module.computations.size(), false);
  std::vector<int> result;
  Visit(module, module.entry, &seen, &result);
  return result;
}

void Reorder(const std::vector<int>& order, Computation* computation) {
  std::vector<int> place(order.size());
  for (size_t n = 0; n < order.size(); ++n) place[order[n]] = static_cast<int>(n);
  std::vector<Instruction> instructions;
  instructions.reserve(order.size());
  for (const int number : order) {
    instructions.push_back(std::move(computation->instructions[number]));
    for (int& operand : instructions.back().operands) operand = place[operand];
    for (int& before : instructions.back().control_predecessors) before = place[before];
  }
  computation->instructions = std::move(instructions);
  if (computation->root >= 0) computation->root = place[computation->root];
}

}  // namespace anabranch::sim::hlo
