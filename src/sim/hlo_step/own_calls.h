// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_STEP_OWN_CALLS_H_
#define ANABRANCH_SIM_HLO_STEP_OWN_CALLS_H_

#include "sim/hlo/module.h"
#include "sim/hlo_step/kernel_work.h"

namespace anabranch::sim::hlo {

// The work of a custom call of ours (target anabranch_X), by the FLOPs and bytes of X_cost.h; every
// row that the buffers have room for counts as routed. What only moves memory keeps the bytes of
// its operands and results. False, and *work as it was, for any other call, for one that talks to
// other ranks or takes packed operands, and for operands that are not X's.
bool AddOwnCall(const Computation& computation, const Instruction& call, KernelWork* work);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_STEP_OWN_CALLS_H_
