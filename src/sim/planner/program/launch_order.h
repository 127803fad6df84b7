// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_PROGRAM_LAUNCH_ORDER_H_
#define ANABRANCH_SIM_PLANNER_PROGRAM_LAUNCH_ORDER_H_

#include "sim/planner/program/program.h"

namespace anabranch::sim {

// Fixes the order in which each stream runs its tasks: replaces Task::order, until here the rank of
// the task among those that could go next, by the task's place in its stream.
//
// A framework launches kernels in an order that is written down before anything is known of their
// times, and a stream runs them in that order. Ours is what a list scheduler does when a kernel
// takes one unit and a transfer two: forward and backward pass alternate layer by layer, and weight
// gradients stand where the backward pass waits for its dispatch, as in Megatron's overlapped 1F1B
// and in DualPipe. It depends on model and layout, not on the hardware; were it made anew from the
// times of each machine, a faster one could get a worse order.
void SetLaunchOrder(Program* program);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_PROGRAM_LAUNCH_ORDER_H_
