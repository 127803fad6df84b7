// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_MODULE_H_
#define ANABRANCH_SIM_HLO_MODULE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sim/hlo/shape.h"

namespace anabranch::sim::hlo {

struct Instruction {
  std::string name;    // without %
  std::string opcode;  // as written: "fusion", "all-gather-start", "async-start"
  Shape shape;
  std::vector<int> operands;              // earlier instructions of the same computation
  std::vector<int> control_predecessors;  // likewise
  std::vector<int> called;  // computations it runs: calls, body, branches; no reducers
  std::string argument;     // what stands in the brackets of parameter(0), constant(..)
  std::map<std::string, std::string, std::less<>> attributes;  // as written; metadata left out
  int64_t line = 0;

  // The text of an attribute, "" when it is not there.
  std::string_view attribute(std::string_view key) const {
    const auto found = attributes.find(key);
    return found == attributes.end() ? std::string_view() : std::string_view(found->second);
  }
};

struct Computation {
  std::string name;
  std::vector<Instruction> instructions;  // operands first; the schedule, if the module has one
  int root = -1;
};

// A module of XLA's text format. Computations come before those that call them.
struct HloModule {
  std::string name;
  bool is_scheduled = false;
  std::vector<Computation> computations;
  int entry = -1;

  const Computation& entry_computation() const { return computations[entry]; }
};

// Parses HLO text as `compiled.as_text()` and XLA's dumps print it, short or long form.
// InvalidArgument names the line and what is wrong with it: no HloModule line, no ENTRY, a shape or
// an instruction that cannot be read, an operand or computation that is not defined before its use.
// Nothing of `text` is kept. Memory: proportional to the text without its metadata.
Status ParseHlo(std::string_view text, HloModule* module);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_MODULE_H_
