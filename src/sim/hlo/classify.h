// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_CLASSIFY_H_
#define ANABRANCH_SIM_HLO_CLASSIFY_H_

#include <string_view>

#include "sim/hlo/module.h"
#include "sim/xla_scheduler/graph.h"

namespace anabranch::sim::hlo {

// What kind of thing an instruction is, for costs and for the scheduler.
//
// An asynchronous operation is a pair: all-gather-start and -done, async-start of a computation
// that holds one operation, the short form all-to-all-start of the same, copy-start, send and recv.

// The operation inside an asynchronous start or done ("all-gather"); else the opcode itself.
std::string_view InnerOpcode(const HloModule& module, const Instruction& instruction);
// The instruction whose operands, shape and attributes describe the operation: the root of what an
// async-start wraps, else the instruction itself.
const Instruction& WrappedInstruction(const HloModule& module, const Instruction& instruction);

bool IsCollectiveOpcode(std::string_view opcode);
// A start or done as the scheduler sees it; collectives that the back end marked synchronous are
// plain.
NodeRole RoleOf(const HloModule& module, const Computation& computation, const Instruction& i);
AsyncResource ResourceOf(const HloModule& module, const Instruction& instruction);
// The start that a done ends; -1 when it lies outside the computation.
int StartOf(const Computation& computation, const Instruction& done);
// Whether the called computations run as a schedule of their own: loops, calls, conditionals.
bool RunsComputations(const Instruction& instruction);
// Whether a start copies to the host's memory.
bool CopiesToHost(const HloModule& module, const Instruction& start);
// A custom call that was put on the stream of collectives.
bool IsCustomCollective(const Instruction& instruction);
// How often a loop's body runs: backend_config's known_trip_count; 1 when it is not known.
int64_t TripCount(const Instruction& loop);
// The value of frontend attribute `key`, "" when it is not there.
std::string_view FrontendAttribute(const Instruction& instruction, std::string_view key);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_CLASSIFY_H_
