// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Uses the installed package as a stranger would; exit 0 means that it works.
#include <anabranch/adamw.h>
#include <anabranch/attention.h>
#include <anabranch/context.h>
#include <anabranch/executor.h>
#include <anabranch/grouped_gemm.h>
#include <anabranch/linear.h>
#include <anabranch/linear_cross_entropy.h>
#include <anabranch/moe_ffn.h>
#include <anabranch/muon.h>
#include <anabranch/quantize.h>
#include <anabranch/ragged_plan.h>
#include <anabranch/router.h>
#include <anabranch/rows.h>
#include <anabranch/status.h>
#include <anabranch/tensor_view.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace {

// One block of ones: the smallest power of two that is at least 1 / 448 is 2^-8 (E8M0 code 119),
// and 256 is 2^(15 - 7) in E4M3, code 0x78.
bool QuantizesOnes() {
  const std::vector<float> ones(32, 1.0F);
  std::vector<uint8_t> data(32), scale(1);
  std::vector<float> tensor_scale(1);
  std::vector<int32_t> group_offsets(2);
  anabranch::QuantizeArgs args;
  args.x = {ones.data(), anabranch::DType::kF32, {1, 32}};
  args.data = {data.data(), anabranch::DType::kE4M3, {1, 32}};
  args.scale = {scale.data(), anabranch::DType::kE8M0, {1, 1}};
  args.tensor_scale = {tensor_scale.data(), anabranch::DType::kF32, {1}};
  args.group_offsets = {group_offsets.data(), anabranch::DType::kI32, {2}};
  return anabranch::QuantizeReference(args).ok() && data == std::vector<uint8_t>(32, 0x78) &&
         scale[0] == 119;
}

}  // namespace

int main() {
  // Three tokens choose two of four experts; the last choice is routed nowhere.
  const std::vector<int32_t> experts = {3, 0, 0, 2, 3, -1};
  std::vector<int32_t> group_sizes(4), group_offsets(5), row_token(6), slot_row(6);
  anabranch::RaggedPlanArgs args;
  args.experts = {experts.data(), anabranch::DType::kI32, {3, 2}};
  args.group_sizes = {group_sizes.data(), anabranch::DType::kI32, {4}};
  args.group_offsets = {group_offsets.data(), anabranch::DType::kI32, {5}};
  args.row_token = {row_token.data(), anabranch::DType::kI32, {6}};
  args.slot_row = {slot_row.data(), anabranch::DType::kI32, {3, 2}};

  anabranch::ThreadExecutor executor(2);
  std::vector<std::byte> scratch(anabranch::RaggedPlanScratchBytes(6, 4) + 64);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  anabranch::Context context;
  context.executor = &executor;
  context.scratch = scratch.data() + (64 - address % 64) % 64;
  context.scratch_bytes = anabranch::RaggedPlanScratchBytes(6, 4);
  if (!anabranch::RaggedPlan(args, context).ok()) return 1;

  const bool right = group_offsets == std::vector<int32_t>{0, 2, 2, 3, 5} &&
                     row_token == std::vector<int32_t>{0, 1, 1, 0, 2, -1} &&
                     slot_row == std::vector<int32_t>{3, 0, 1, 2, 4, -1};
  return right && QuantizesOnes() && kConsumerStatus == 3 ? 0 : 1;
}
