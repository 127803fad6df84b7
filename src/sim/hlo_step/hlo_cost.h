// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_STEP_HLO_COST_H_
#define ANABRANCH_SIM_HLO_STEP_HLO_COST_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "sim/engine/engine.h"
#include "sim/hlo/module.h"
#include "sim/hlo_step/hlo_graph.h"
#include "sim/planner/request.h"

namespace anabranch::sim::hlo {

// What an instruction takes, from its shapes alone. A kernel is bound by the multiply units or by
// memory, whichever takes longer; FLOPs are those of the products inside it (2 for a multiply-add),
// bytes those of operands and results, of which a slice reads and an update writes only its part.
struct InstructionCost {
  enum class Kind : uint8_t { kNothing, kKernel, kCollective, kHostCopy, kAsyncKernel };
  Kind kind = Kind::kNothing;
  Stream stream =
      Stream::kCompute;  // ep: all-to-all; dp: gather, scatter, reduce; pp: permute, send
  double sm_seconds = 0;
  double hbm_seconds = 0;
  double fixed_seconds = 0;  // launch; stated latency; host copies
  Transfer transfer;
  double flops = 0;
  double bytes = 0;
  bool guessed = false;  // a custom call of which only the operands' sizes are known

  double Seconds() const {
    return kind == Kind::kCollective ? transfer.Seconds()
                                     : sm_seconds + hbm_seconds + fixed_seconds;
  }
};

// The cost of instruction `number` of a computation. A done costs nothing, its start everything;
// loops, calls and conditionals cost nothing themselves.
// A custom call costs its frontend attribute latency_metadata (ns) if it has one; else, a library's
// matrix product or attention its FLOPs, and ours what own_calls.h says; else its bytes, marked as
// guessed.
// Collectives take their time from the device groups, num_devices and the hardware's scale-up
// domain. InvalidArgument: groups that cannot be read, operands that do not fit the opcode.
Status CostOf(const HloModule& module, const Computation& computation, int number,
              const Hardware& hardware, int64_t num_devices, InstructionCost* cost);

// The costs of a computation as the scheduler meets them when it has a profile of them:
// nanoseconds, 1 for a start, a done, and what runs computations.
std::vector<InstructionTimes> ProfileTimes(const HloModule& module, const Computation& computation,
                                           const std::vector<InstructionCost>& costs);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_STEP_HLO_COST_H_
