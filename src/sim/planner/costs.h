// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_COSTS_H_
#define ANABRANCH_SIM_PLANNER_COSTS_H_

#include <array>

#include "sim/engine/network.h"
#include "sim/planner/request.h"

// What the parts of one layer cost one rank for one microbatch. FLOPs and bytes are those of the
// operations' *_cost.h; a kernel is bound by the multiply units or by HBM, whichever takes longer.
namespace anabranch::sim {

// Compute, split by what bounds it: collectives that run at the same time slow the parts
// differently.
struct Work {
  double sm_seconds = 0;
  double hbm_seconds = 0;
  double fixed_seconds = 0;
  double flops = 0;

  double Seconds() const { return sm_seconds + hbm_seconds + fixed_seconds; }
  Work& operator+=(const Work& other);
};

// Forward, input gradients, weight gradients.
enum Pass { kForward = 0, kDgrad = 1, kWgrad = 2 };
using Passes = std::array<Work, 3>;

// Forward parts that can be asked to run again in the backward pass.
struct Repeatable {
  Work norms;
  Work latent;
  Work core_attention;
  Work dense_up;
  Work shared_up;
};

struct Costs {
  Passes attention;  // norms, projections, core, residuals; in expert layers the router too
  Passes dense;      // dense feed-forward
  Passes shared;     // shared expert
  Passes head;       // output projection and loss
  Passes mtp;        // the projection that joins a token and its predecessor
  Work embedding;
  Repeatable repeat;
  Transfer tensor;  // tensor and context parallelism, one layer, one pass
  Transfer send;    // a pipeline boundary
};

// The routed experts of a layer on the rank with `load` times the mean rows.
struct ExpertCosts {
  Passes experts;
  Work up;                               // gate and up products, to repeat
  Work activation;                       // to repeat
  Transfer dispatch, combine;            // forward
  Transfer dispatch_grad, combine_grad;  // the combine's transpose comes first in the backward pass
};

// Tokens of one microbatch: that a tensor-parallel group works on, and one rank's share of them.
double GroupTokens(const Layout& layout);
double RankTokens(const Layout& layout);

// Bytes an element of a saved input of a product takes in this format, scales included.
double ElementBytes(Format format);

Costs MakeCosts(const Request& request);

// `rank_load` and `domain_load` are the busiest rank's and domain's rows over the mean.
ExpertCosts MakeExpertCosts(const Request& request, double rank_load, double domain_load);

// Parameters of one layer of each kind, whole (not sharded).
struct LayerParameters {
  double attention = 0;  // norms and projections
  double dense = 0;
  double router_and_shared = 0;
  double expert = 0;  // all routed experts of one layer
  double embedding = 0;
  double head = 0;
  double mtp = 0;  // the joining projection; its block is an expert layer
};
LayerParameters CountParameters(const Model& model);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_COSTS_H_
