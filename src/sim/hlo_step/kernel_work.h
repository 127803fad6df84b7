// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_HLO_STEP_KERNEL_WORK_H_
#define ANABRANCH_SIM_HLO_STEP_KERNEL_WORK_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "sim/hlo/module.h"

namespace anabranch::sim::hlo {

// A matrix product inside a kernel.
struct Product {
  double flops = 0;
  double depth = 1;  // length of the contraction
  std::string type;  // of its left operand
};

// What a kernel does.
struct KernelWork {
  std::vector<Product> products;
  double bytes = 0;           // read and written in the device's memory
  double moved = 0;           // of a copy: what it copies
  double stated_seconds = 0;  // of a custom call that says what it takes
  bool guessed = false;
};

// The work of one kernel: a fusion, a plain operation, a library call, or what an asynchronous
// start wraps. InvalidArgument: a product's dimensions do not fit its operands.
Status WorkOf(const HloModule& module, const Computation& computation, const Instruction& i,
              KernelWork* work);

}  // namespace anabranch::sim::hlo

#endif  // ANABRANCH_SIM_HLO_STEP_KERNEL_WORK_H_
