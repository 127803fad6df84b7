// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo_step/hlo_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>

#include "sim/hlo/classify.h"
#include "sim/hlo/device_groups.h"
#include "sim/hlo/text.h"
#include "sim/hlo_step/kernel_work.h"

namespace anabranch::sim::hlo {
namespace {

using Kind = InstructionCost::Kind;

// Peak of products by the type of their operands. XLA lets f32 products use TF32, half the bf16
// rate.
double PeakFlops(const Hardware& hardware, std::string_view type) {
  if (type.starts_with("f4")) return hardware.fp4_flops * hardware.gemm_low_efficiency;
  if (type.starts_with("f8") || type == "s8") {
    return hardware.fp8_flops * hardware.gemm_low_efficiency;
  }
  const double bf16 = hardware.bf16_flops * hardware.gemm_efficiency;
  return type == "f32" || type == "f64" ? bf16 / 2 : bf16;
}

void PriceKernel(const KernelWork& work, const Hardware& hardware, InstructionCost* cost) {
  double sm = 0;
  for (const Product& product : work.products) {
    // A short contraction leaves the pipeline of multiply units part-filled.
    const double depth = product.depth / (product.depth + hardware.gemm_half_depth);
    sm += product.flops / (PeakFlops(hardware, product.type) * depth);
    cost->flops += product.flops;
  }
  cost->bytes = work.bytes;
  const double hbm = work.bytes / (hardware.hbm_bandwidth * hardware.hbm_efficiency);
  (sm > hbm ? cost->sm_seconds : cost->hbm_seconds) = std::max(sm, hbm);
  cost->fixed_seconds = work.stated_seconds + hardware.graph_launch_seconds;
  cost->guessed = work.guessed;
}

Transfer Doubled(Transfer transfer) {
  transfer.scale_up *= 2;
  transfer.scale_out *= 2;
  transfer.latency *= 2;
  return transfer;
}

Stream StreamOf(std::string_view opcode) {
  if (opcode == "all-to-all" || opcode == "ragged-all-to-all") return Stream::kEp;
  return opcode == "collective-permute" || opcode == "send" || opcode == "recv" ? Stream::kPp
                                                                                : Stream::kDp;
}

// What a collective puts on the ports of its busiest member.
Transfer PriceCollective(std::string_view opcode, const GroupExtent& extent, double in, double out,
                         const Ports& ports) {
  Group group = MakeGroup(ports, extent.size, extent.stride);
  group.local = std::gcd(extent.size, extent.in_domain);
  if (opcode == "all-gather" || opcode == "collective-broadcast") {
    return AllGather(ports, group, out);
  }
  if (opcode == "reduce-scatter") return AllGather(ports, group, in);
  if (opcode == "all-reduce") return Doubled(AllGather(ports, group, in));
  if (opcode == "all-to-all" || opcode == "ragged-all-to-all") {
    const auto ranks = static_cast<double>(group.ranks);
    const auto local = static_cast<double>(group.local);
    return AllToAll(ports, group, in * (local - 1) / ranks, in * (ranks - local) / ranks);
  }
  return group.ranks > 1 ? Send(ports, extent.in_domain == extent.size, in) : Transfer{};
}

double OperandBytes(const Computation& computation, const Instruction& i, size_t count) {
  double bytes = 0;
  for (size_t n = 0; n < std::min(count, i.operands.size()); ++n) {
    bytes += ByteSize(computation.instructions[i.operands[n]].shape);
  }
  return bytes;
}

// all-gather-start and collective-permute-start give (operands, results[, contexts]); what an
// async-start wraps gives the results alone.
double ResultBytes(const Instruction& wrapped) {
  const Shape& shape = wrapped.shape;
  const bool pair = wrapped.opcode.ends_with("-start") && shape.elements.size() >= 2;
  return ByteSize(pair ? shape.elements[1] : shape);
}

Status CostOfCollective(const HloModule& module, const Computation& computation,
                        const Instruction& i, const Hardware& hardware, int64_t num_devices,
                        InstructionCost* cost) {
  const Instruction& wrapped = WrappedInstruction(module, i);
  const std::string_view opcode = InnerOpcode(module, i);
  DeviceGroups groups;
  ANABRANCH_RETURN_IF_ERROR(CollectiveGroups(wrapped, num_devices, &groups));
  const GroupExtent extent = ExtentOf(groups, std::max<int64_t>(hardware.scale_up_domain, 1));
  // A ragged exchange's other operands are the result's buffer, offsets and sizes.
  const size_t moved = opcode == "ragged-all-to-all" ? 1 : i.operands.size();
  cost->kind = Kind::kCollective;
  cost->stream = StreamOf(opcode);
  cost->bytes = OperandBytes(computation, i, moved);
  cost->transfer = PriceCollective(opcode, extent, cost->bytes, ResultBytes(wrapped),
                                   MakePorts(hardware, num_devices));
  return Status::Ok();
}

bool ReadsHost(const Computation& computation, const Instruction& i) {
  return std::any_of(i.operands.begin(), i.operands.end(),
                     [&](int n) { return IsOnHost(computation.instructions[n].shape); });
}

}  // namespace

Status CostOf(const HloModule& module, const Computation& computation, int number,
              const Hardware& hardware, int64_t num_devices, InstructionCost* cost) {
  *cost = InstructionCost();
  const Instruction& i = computation.instructions[number];
  const bool ends = i.opcode.ends_with("-done") || i.opcode.ends_with("-update");
  if (RoleOf(module, computation, i) == NodeRole::kNoOp || RunsComputations(i) || ends ||
      i.opcode == "opt-barrier" || i.opcode == "after-all") {
    return Status::Ok();
  }
  const std::string_view inner = InnerOpcode(module, i);
  if (IsCollectiveOpcode(inner) || inner == "send" || inner == "recv") {
    return CostOfCollective(module, computation, i, hardware, num_devices, cost);
  }
  KernelWork work;
  ANABRANCH_RETURN_IF_ERROR(WorkOf(module, computation, i, &work));
  const bool to_host = CopiesToHost(module, i);
  if (to_host || ReadsHost(computation, i)) {
    cost->kind = Kind::kHostCopy;
    cost->stream = to_host ? Stream::kD2h : Stream::kH2d;
    cost->bytes = work.moved;
    cost->fixed_seconds = work.moved / (hardware.host_bandwidth * hardware.host_efficiency);
    return Status::Ok();
  }
  PriceKernel(work, hardware, cost);
  const bool start = RoleOf(module, computation, i) == NodeRole::kStart;
  cost->kind = start ? Kind::kAsyncKernel : Kind::kKernel;
  if (start) cost->stream = IsCustomCollective(i) ? Stream::kEp : Stream::kTp;
  return Status::Ok();
}

std::vector<InstructionTimes> ProfileTimes(const HloModule& module, const Computation& computation,
                                           const std::vector<InstructionCost>& costs) {
  constexpr double kNanoseconds = 1e9;
  std::vector<InstructionTimes> times(costs.size());
  for (size_t n = 0; n < costs.size(); ++n) {
    const Instruction& i = computation.instructions[n];
    const NodeRole role = RoleOf(module, computation, i);
    const double whole = costs[n].Seconds() * kNanoseconds;
    times[n].latency = whole;
    if (role == NodeRole::kNoOp || i.opcode == "opt-barrier") continue;
    times[n].cost = role == NodeRole::kPlain && whole > 0 ? whole : 1;
  }
  return times;
}

}  // namespace anabranch::sim::hlo
