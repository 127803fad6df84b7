// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/wire/wire.h"

#include "ops/quantize/wire/wire_rows.h"

namespace anabranch::expert_parallel {

Status Decode(const DecodeArgs& args, const Context& context) {
  Plan plan;
  ANABRANCH_RETURN_IF_ERROR(ReadPlan(args.plan, &plan));
  const Waves& waves = args.waves;
  if (waves.count < 1 || waves.count > kMaxWaves || args.wave < 0 || args.wave >= waves.count) {
    return InvalidArgument("expert_parallel_decode: wave ", args.wave, " of ", waves.count,
                           "; must be in [0, waves), waves in [1, ", kMaxWaves, "]");
  }
  const int64_t used =
      waves.Begin(plan, plan.rank, args.wave + 1) - waves.Begin(plan, plan.rank, args.wave);
  return DecodeRows({args.slots, used, args.rows}, context);
}

}  // namespace anabranch::expert_parallel
