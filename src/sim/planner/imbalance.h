// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_IMBALANCE_H_
#define ANABRANCH_SIM_PLANNER_IMBALANCE_H_

#include <vector>

#include "sim/planner/request.h"

namespace anabranch::sim {

// How rows spread over the ranks of one expert-parallel group in one layer, as multiples of the
// mean.
struct LayerLoad {
  double rank = 1;    // the busiest rank
  double domain = 1;  // the busiest scale-up domain
  std::vector<double> ranks;
};

// Share of tokens that choose each expert when expert e has weight (e + 1)^-zipf and a token takes
// `topk` without replacement: 1 - exp(-x w_e), with x so that the shares add up to topk (the limit
// of many independent draws). Length `experts`.
std::vector<double> InclusionShares(int64_t experts, int64_t topk, double zipf);

// Loads of every expert layer. The trace wins over zipf; a trace with fewer layers is repeated.
// Under zipf each layer places its experts anew, by `seed`. imbalance.random adds the expected
// maximum of the sampling noise of balanced routing.
std::vector<LayerLoad> MakeLoads(const Request& request, int64_t layers);

// A standard normal draw that depends on (seed, stream, index) alone.
double Normal(int64_t seed, int64_t stream, int64_t index);

// A draw of the largest of `count` standard normal variables.
double NormalMaximum(int64_t seed, int64_t stream, double count);

// The median of the largest of `count` standard normal variables.
double MedianMaximum(double count);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_IMBALANCE_H_
