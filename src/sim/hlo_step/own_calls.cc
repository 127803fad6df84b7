// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo_step/own_calls.h"

#include <algorithm>
#include <string_view>

#include "ops/attention/attention_cost.h"
#include "ops/grouped_gemm/grouped_gemm_cost.h"
#include "ops/linear_cross_entropy/linear_cross_entropy_cost.h"
#include "ops/moe_ffn/moe_ffn_cost.h"
#include "ops/muon/muon_cost.h"

namespace anabranch::sim::hlo {
namespace {

// What only moves memory: their cost headers count operands and results once, as the shapes do.
constexpr std::string_view kMemoryBound[] = {
    "router",
    "router_grad",
    "ragged_plan",
    "gather_rows",
    "gather_weights",
    "combine_rows",
    "combine_rows_grad",
    "pack_experts",
    "adamw",
    "sum_of_squares",
    "tree_add",
    "rms_norm",
    "add_rms_norm",
    "rms_norm_grad",
    "add_rms_norm_grad",
    "quantize",
    "dequantize",
    "quantize_dequantize",
    "quantize_dequantize_both",
    "tensor_amax",
    "random_hadamard",
    "pack_codes",
    "unpack_codes",
    "activate_rows",
    "activate_rows_grad",
    "weigh_rows",
    "weigh_rows_grad",
};
constexpr int64_t kMuonIterations = 5;  // the handler's default

class Call {
 public:
  Call(const Computation& computation, const Instruction& call)
      : computation_(computation), call_(call) {}

  std::string_view target() const {
    std::string_view text = call_.attribute("custom_call_target");
    const std::string_view prefix = "anabranch_";
    const size_t at = text.find(prefix);
    if (at == std::string_view::npos) return {};
    text.remove_prefix(at + prefix.size());
    return text.substr(0, text.find('"'));
  }
  // Whether operand n is an array of this rank.
  bool Has(size_t n, size_t rank) const {
    return n < call_.operands.size() && shape(n).dims.size() == rank;
  }
  const Shape& shape(size_t n) const { return computation_.instructions[call_.operands[n]].shape; }
  int64_t dim(size_t n, size_t d) const { return shape(n).dims[d]; }
  int64_t element_bytes(size_t n) const {
    return std::max<int64_t>(ElementBits(shape(n).type) / 8, 1);
  }
  void Multiply(double flops, double depth, size_t operand, KernelWork* work) const {
    work->products.push_back({flops, std::max(depth, 1.0), shape(operand).type});
  }
  bool Says(std::string_view text) const {
    return call_.attribute("backend_config").find(text) != std::string_view::npos;
  }

 private:
  const Computation& computation_;
  const Instruction& call_;
};

// rows x [T, H] (or [R, H]), weights of rows, gate and up [E, H, F], down [E, F, H], offsets, and
// in moe_ffn the token of each of R rows.
bool AddMoeFfn(const Call& call, bool gathered, bool backward, KernelWork* work) {
  if (!call.Has(0, 2) || !call.Has(2, 3) || (gathered && !call.Has(6, 1))) return false;
  const MoeFfnProblem problem{call.dim(0, 0),       gathered ? call.dim(6, 0) : call.dim(0, 0),
                              call.dim(2, 1),       call.dim(2, 2),
                              call.dim(2, 0),       call.element_bytes(0),
                              call.element_bytes(2)};
  const double flops = backward ? MoeFfnGradFlops(problem) : MoeFfnFlops(problem);
  call.Multiply(flops * 2 / 3, static_cast<double>(problem.hidden), 0, work);
  call.Multiply(flops / 3, static_cast<double>(problem.expert_width), 0, work);
  work->bytes = backward ? MoeFfnGradBytes(problem) : MoeFfnBytes(problem);
  return true;
}

// Operands [R, K] and [E, K, N]; [R, N] and [E, K, N]; [R, K], [R, N] and E group sizes.
bool AddGroupedGemm(const Call& call, std::string_view target, KernelWork* work) {
  const bool wgrad = target == "grouped_gemm_wgrad";
  if (!call.Has(0, 2) || !call.Has(1, wgrad ? 2 : 3) || !call.Has(2, 1)) return false;
  const int64_t groups = call.dim(2, 0);
  const GroupedGemmShape shape{call.dim(0, 0), groups, groups,
                               wgrad ? call.dim(0, 1) : call.dim(1, 1),
                               wgrad ? call.dim(1, 1) : call.dim(1, 2)};
  double depth = static_cast<double>(shape.k);
  if (target.starts_with("grouped_gemm_dgrad")) depth = static_cast<double>(shape.n);
  if (wgrad) depth = static_cast<double>(shape.num_rows) / static_cast<double>(groups);
  call.Multiply(GroupedGemmFlops(shape), depth, 0, work);
  return true;
}

bool AddAttention(const Call& call, bool backward, KernelWork* work) {
  if (!call.Has(0, 4) || !call.Has(1, 4) || !call.Has(2, 4)) return false;
  const AttentionProblem problem{.batch = call.dim(0, 0),
                                 .length = call.dim(0, 1),
                                 .heads = call.dim(0, 2),
                                 .kv_heads = call.dim(1, 2),
                                 .size = call.dim(0, 3),
                                 .value_size = call.dim(2, 3),
                                 .element_bytes = call.element_bytes(0),
                                 .causal = !call.Says("causal = false")};
  // The method computes the scores once more.
  const double flops = backward ? 1.25 * AttentionGradFlops(problem) : AttentionFlops(problem);
  call.Multiply(flops, static_cast<double>(problem.size), 0, work);
  work->bytes = backward ? AttentionGradBytes(problem) : AttentionBytes(problem);
  return true;
}

bool AddLoss(const Call& call, bool backward, KernelWork* work) {
  if (!call.Has(0, 2) || !call.Has(1, 2)) return false;
  const LinearCrossEntropyProblem problem{call.dim(0, 0), call.dim(0, 1), call.dim(1, 1),
                                          call.element_bytes(0), call.element_bytes(1)};
  call.Multiply(
      backward ? LinearCrossEntropyGradMachineFlops(problem) : LinearCrossEntropyFlops(problem),
      static_cast<double>(problem.hidden), 0, work);
  work->bytes = backward ? LinearCrossEntropyGradBytes(problem) : LinearCrossEntropyBytes(problem);
  return true;
}

// Scalars, then stacks [matrices, m, n].
bool AddMuon(const Call& call, KernelWork* work) {
  if (!call.Has(1, 3)) return false;
  const int64_t m = call.dim(1, 1);
  const int64_t n = call.dim(1, 2);
  call.Multiply(MuonFlops(call.dim(1, 0), m, n, kMuonIterations),
                static_cast<double>(std::min(m, n)), 1, work);
  work->bytes = MuonBytes(call.dim(1, 0) * m * n);
  return true;
}

}  // namespace

bool AddOwnCall(const Computation& computation, const Instruction& instruction, KernelWork* work) {
  const Call call(computation, instruction);
  const std::string_view target = call.target();
  if (target.empty()) return false;
  const bool backward = target.ends_with("_grad");
  if (target == "moe_ffn" || target == "moe_ffn_grad") return AddMoeFfn(call, true, backward, work);
  if (target == "moe_ffn_rows" || target == "moe_ffn_rows_grad") {
    return AddMoeFfn(call, false, backward, work);
  }
  if (target.starts_with("grouped_gemm")) return AddGroupedGemm(call, target, work);
  if (target.starts_with("attention")) return AddAttention(call, backward, work);
  if (target.starts_with("linear_cross_entropy")) return AddLoss(call, backward, work);
  if (target == "muon") return AddMuon(call, work);
  return std::find(std::begin(kMemoryBound), std::end(kMemoryBound), target) !=
         std::end(kMemoryBound);
}

}  // namespace anabranch::sim::hlo
