// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "sim/hlo_step/kernel_work.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "sim/hlo/classify.h"
#include "sim/hlo/text.h"
#include "sim/hlo_step/own_calls.h"

namespace anabranch::sim::hlo {
namespace {

const Shape& OperandShape(const Computation& computation, const Instruction& i, size_t n) {
  static const Shape kNone{"token", {}, 0, {}};
  return n < i.operands.size() ? computation.instructions[i.operands[n]].shape : kNone;
}

double OnDevice(const Shape& shape) { return IsOnHost(shape) ? 0 : ByteSize(shape); }

// dot: 2 x elements of the result x length of the contraction.
Status AddDot(const Computation& computation, const Instruction& i, KernelWork* work) {
  const Shape& lhs = OperandShape(computation, i, 0);
  std::string_view dims = i.attribute("lhs_contracting_dims");
  Consume(&dims, "{");
  double depth = 1;
  int64_t dim = 0;
  while (ReadInteger(&dims, &dim)) {
    if (dim < 0 || dim >= static_cast<int64_t>(lhs.dims.size())) {
      return InvalidArgument("hlo: line ", i.line, ": ", i.name, " contracts dimension ", dim,
                             " of an operand of rank ", lhs.dims.size());
    }
    depth *= static_cast<double>(lhs.dims[dim]);
    Consume(&dims, ",");
  }
  work->products.push_back({2 * ElementCount(i.shape) * depth, depth, lhs.type});
  return Status::Ok();
}

// A product of a library, C[b,m,n] = A[b,m,k] B[b,k,n]: |A||B||C| = b^3 (mnk)^2.
void AddLibraryProduct(const Computation& computation, const Instruction& i, KernelWork* work) {
  const Shape& lhs = OperandShape(computation, i, 0);
  const Shape& rhs = OperandShape(computation, i, 1);
  const Shape& out = i.shape.elements.empty() ? i.shape : i.shape.elements.front();
  double batch = 1;
  for (size_t d = 0; d + 2 < out.dims.size() && d < lhs.dims.size(); ++d) {
    if (out.dims[d] == lhs.dims[d]) batch *= static_cast<double>(out.dims[d]);
  }
  const double sizes = ElementCount(lhs) * ElementCount(rhs) * ElementCount(out);
  const double flops = 2 * std::sqrt(sizes / std::max(batch, 1.0));
  const double outputs = std::max(ElementCount(out), 1.0);
  work->products.push_back({flops, flops / 2 / outputs, lhs.type});
}

// Attention of a library on [batch, length, heads, size] or [batch, heads, length, size] operands:
// two products forward, five backward; half of each under a causal mask.
void AddAttention(const Computation& computation, const Instruction& i, std::string_view target,
                  KernelWork* work) {
  const Shape& query = OperandShape(computation, i, 0);
  const Shape& key = OperandShape(computation, i, 1);
  if (query.dims.size() != 4 || key.dims.size() != 4) {
    work->guessed = true;
    return;
  }
  const auto length = static_cast<double>(std::max(key.dims[1], key.dims[2]));
  const bool backward = target.find("Backward") != std::string_view::npos;
  const bool causal = i.attribute("backend_config").find("CAUSAL") != std::string_view::npos;
  const double products = (backward ? 5.0 : 2.0) * (causal ? 0.5 : 1.0);
  work->products.push_back({2 * products * ElementCount(query) * length,
                            static_cast<double>(query.dims[3]), query.type});
}

void AddCustomCall(const Computation& computation, const Instruction& i, KernelWork* work) {
  std::string_view stated = FrontendAttribute(i, "latency_metadata");
  int64_t nanoseconds = 0;
  if (ReadInteger(&stated, &nanoseconds) && nanoseconds >= 0) {
    work->stated_seconds = static_cast<double>(nanoseconds) * 1e-9;
    work->bytes = 0;
    return;
  }
  const std::string_view target = i.attribute("custom_call_target");
  if (target.find("__cublas") != std::string_view::npos ||
      target.find("__triton_gemm") != std::string_view::npos) {
    AddLibraryProduct(computation, i, work);
  } else if (target.find("fmha") != std::string_view::npos) {
    AddAttention(computation, i, target, work);
  } else if (!AddOwnCall(computation, i, work)) {
    work->guessed = true;
  }
}

bool IsSlice(std::string_view opcode) {
  return opcode == "dynamic-slice" || opcode == "slice" || opcode == "gather";
}

// Bytes that an instruction alone reads and writes.
double PlainBytes(const Computation& computation, const Instruction& i) {
  const double out = OnDevice(i.shape);
  if (IsSlice(i.opcode)) return 2 * out;
  if (i.opcode == "dynamic-update-slice") return 2 * ByteSize(OperandShape(computation, i, 1));
  if (i.opcode == "scatter") return 3 * ByteSize(OperandShape(computation, i, 2));
  double bytes = out;
  for (size_t n = 0; n < i.operands.size(); ++n) {
    bytes += OnDevice(OperandShape(computation, i, n));
  }
  return bytes;
}

// Bytes of parameter `number` that a fused computation reads: of one that is only sliced the
// slices, of one that is only updated nothing.
double ReadBytes(const Computation& fused, int number) {
  const double whole = OnDevice(fused.instructions[number].shape);
  double sliced = 0;
  bool used = false;
  for (const Instruction& user : fused.instructions) {
    const auto at = std::find(user.operands.begin(), user.operands.end(), number);
    if (at == user.operands.end()) continue;
    used = true;
    const bool first = at == user.operands.begin();
    if (first && IsSlice(user.opcode)) {
      sliced += ByteSize(user.shape);
    } else if (!first || user.opcode != "dynamic-update-slice") {
      return whole;
    }
  }
  return used ? std::min(sliced, whole) : 0;
}

// Bytes that instruction `number` of a fused computation writes as a result.
double WrittenBytes(const Computation& fused, int number) {
  const Instruction& i = fused.instructions[number];
  if (i.opcode == "bitcast" && !i.operands.empty()) return WrittenBytes(fused, i.operands.front());
  if (i.opcode == "dynamic-update-slice") return ByteSize(OperandShape(fused, i, 1));
  if (i.opcode != "tuple") return ByteSize(i.shape);
  double bytes = 0;
  for (const int operand : i.operands) bytes += WrittenBytes(fused, operand);
  return bytes;
}

Status AddProducts(const HloModule& module, const Computation& computation, KernelWork* work) {
  for (const Instruction& i : computation.instructions) {
    if (i.opcode == "dot") ANABRANCH_RETURN_IF_ERROR(AddDot(computation, i, work));
    for (const int called : i.called) {
      ANABRANCH_RETURN_IF_ERROR(AddProducts(module, module.computations[called], work));
    }
  }
  return Status::Ok();
}

Status AddFusion(const HloModule& module, const Instruction& i, KernelWork* work) {
  for (const int called : i.called) {
    const Computation& fused = module.computations[called];
    ANABRANCH_RETURN_IF_ERROR(AddProducts(module, fused, work));
    if (fused.root < 0) continue;
    work->moved = WrittenBytes(fused, fused.root);
    if (!IsOnHost(i.shape)) work->bytes += work->moved;
    for (size_t n = 0; n < fused.instructions.size(); ++n) {
      if (fused.instructions[n].opcode == "parameter") {
        work->bytes += ReadBytes(fused, static_cast<int>(n));
      }
    }
  }
  return Status::Ok();
}

}  // namespace

Status WorkOf(const HloModule& module, const Computation& computation, const Instruction& i,
              KernelWork* work) {
  *work = KernelWork();
  if (i.opcode.starts_with("async-") && !i.called.empty()) {
    const Computation& wrapped = module.computations[i.called.front()];
    if (wrapped.root < 0) return Status::Ok();
    return WorkOf(module, wrapped, wrapped.instructions[wrapped.root], work);
  }
  if (i.opcode.starts_with("fusion") && !i.called.empty()) return AddFusion(module, i, work);
  if (i.opcode == "copy-start") {
    work->moved = ByteSize(OperandShape(computation, i, 0));
    work->bytes = 2 * work->moved;
    return Status::Ok();
  }
  work->bytes = PlainBytes(computation, i);
  work->moved = i.opcode == "dynamic-update-slice" ? ByteSize(OperandShape(computation, i, 1))
                                                   : ByteSize(i.shape);
  if (i.opcode == "dot") return AddDot(computation, i, work);
  if (i.opcode.starts_with("custom-call")) AddCustomCall(computation, i, work);
  return Status::Ok();
}

}  // namespace anabranch::sim::hlo
