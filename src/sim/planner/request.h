// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_SIM_PLANNER_REQUEST_H_
#define ANABRANCH_SIM_PLANNER_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sim/engine/network.h"

// What is asked of the planner. The text form is one "section.name value" per line; every number
// below has such a name, and a name that is unknown is an error. Units: seconds, bytes, per second.
namespace anabranch::sim {

// Achieved shares of a peak ("efficiency") belong to hardware and software stack together; they
// come from kernel tables or a calibration, never from here.
struct Hardware {
  double bf16_flops = 0;
  double fp8_flops = 0;
  double fp4_flops = 0;
  double hbm_capacity = 0;
  double hbm_bandwidth = 0;
  double scale_up_bandwidth = 0;  // one direction
  double scale_up_latency = 0;
  int64_t scale_up_domain = 1;
  int64_t torus_axes = 0;          // of the scale-up domain; 0 for a switch
  double scale_out_bandwidth = 0;  // one direction
  double scale_out_latency = 0;
  double scale_up_hop = 0;  // a step of a ring, seconds
  double scale_out_hop = 0;
  double host_bandwidth = 0;  // one direction
  double host_memory_bandwidth = 0;
  int64_t sms = 1;
  int64_t collective_sms = 0;  // SMs that drive a collective while it runs

  double gemm_efficiency = 1;       // of the bf16 peak, large dense products
  double gemm_low_efficiency = 1;   // of the fp8 or fp4 peak
  double grouped_efficiency = 1;    // grouped products relative to dense ones
  double wgrad_efficiency = 1;      // weight gradients relative to forward products
  double gemm_half_rows = 0;        // rows an expert at which a grouped product runs at half
  double gemm_half_depth = 0;       // contraction length at which any product runs at half
  double attention_efficiency = 1;  // of the bf16 peak
  double attention_grad_efficiency = 1;
  double hbm_efficiency = 1;
  double scale_up_efficiency = 1;
  double scale_out_efficiency = 1;
  double host_efficiency = 1;
  double elementwise_passes = 1;    // memory passes relative to each tensor read and written once
  double launch_seconds = 0;        // a kernel, launched by the host
  double graph_launch_seconds = 0;  // a kernel, inside a graph
  double layer_host_seconds = 0;    // host work that a layer's pass adds when no graph covers it
  double reserved_bytes = 0;        // context, communicators, libraries
  double allocator_slack = 0;       // share of what is allocated
};

struct Model {
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t dense_layers = 0;
  int64_t dense_width = 0;
  int64_t experts = 0;
  int64_t topk = 0;
  int64_t expert_width = 0;
  int64_t shared_experts = 0;
  int64_t groups = 1;
  int64_t group_topk = 1;
  int64_t mla = 0;  // 1 for multi-head latent attention, else grouped-query
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t q_rank = 0;
  int64_t kv_rank = 0;
  int64_t nope_size = 0;
  int64_t rope_size = 0;
  int64_t value_size = 0;
  int64_t qk_norm = 0;  // 1 when queries and keys are normalised per head
  int64_t tied = 0;
  int64_t mtp_layers = 0;

  int64_t QueryKeySize() const { return mla ? nope_size + rope_size : head_size; }
  int64_t ValueSize() const { return mla ? value_size : head_size; }
};

enum class Format : int64_t { kBf16 = 0, kFp8 = 1, kMxfp8 = 2, kFp8Block = 3, kNvfp4 = 4 };
enum class Pipeline : int64_t { kOneForwardOneBackward = 0, kInterleaved = 1, kDualPipe = 2 };
enum class Sharding : int64_t { kNone = 0, kZero1 = 1, kFsdp = 3 };
enum class Optimizer : int64_t { kAdamw = 0, kMuon = 1 };

// Named tensors of a layer that can be computed again or kept on the host; bits of a mask.
enum Saved : int64_t {
  kNorm = 1,           // outputs of the norms
  kAttention = 2,      // core attention: its output
  kLatent = 4,         // queries, keys and values expanded from the latents (MLA's up projection)
  kDenseFfn = 8,       // gate, up and activation of a dense block
  kShared = 16,        // the same of the shared expert
  kExpertInput = 32,   // dispatched rows
  kExpertHidden = 64,  // gate and up of the routed experts
  kExpertActivation = 128,
  kFull = 256,       // all but the block's input
  kOptimizer = 512,  // offload only: master weights and moments live on the host
};

struct Layout {
  int64_t ranks = 1;
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t pp = 1;
  int64_t vp = 1;
  int64_t ep = 1;
  int64_t sharding = 1;
  int64_t batch = 1;       // sequences of one step
  int64_t microbatch = 1;  // sequences of one microbatch on one data-parallel rank
  int64_t sequence = 4096;
  int64_t pipeline = 0;
  int64_t format = 0;
  int64_t fp8_attention = 0;
  int64_t overlap = 0;         // run one microbatch's dispatch under another's compute
  int64_t shared_overlap = 0;  // run the shared expert under the dispatch
  int64_t split_wgrad = 0;     // weight gradients run after the dispatch of the input gradients
  int64_t fused_dispatch = 1;  // permutation is part of dispatch and combine
  int64_t dedup = 1;           // a token travels once to each domain
  int64_t node_limit = 0;      // domains a token may visit, 0 for no limit
  int64_t low_wire = 0;        // dispatch travels in the low-precision format
  int64_t single_stream = 0;   // collectives of every kind run one after the other
  int64_t graph = 0;           // 0 no graph, 1 parts of a layer, 2 the whole step
  int64_t recompute = 0;       // Saved
  int64_t offload = 0;         // Saved
  double gradient_bytes = 4;
  double optimizer_bytes = 12;  // master weight and two moments; Muon has one
  int64_t optimizer = 0;
  double dispatch_factor = 0;  // receive buffer over balanced rows, 0 for exactly what arrives

  int64_t dp() const { return ranks / (tp * cp * pp); }
  int64_t edp() const { return ranks / (pp * ep); }
  int64_t microbatches() const { return batch / (dp() * microbatch); }
};

struct Imbalance {
  double zipf = 0;
  double jitter = 0;  // standard deviation of a rank's relative speed
  // Ranks of the machine whose jitter the calibration already holds: at this size the slowest rank
  // costs nothing on average. 0 to charge all of it.
  int64_t jitter_reference = 0;
  double random = 0;  // 1 adds the sampling noise of balanced routing
  int64_t seed = 0;
  std::vector<double> load;  // measured tokens of each expert, layer after layer; empty for zipf
};

struct Request {
  Hardware hardware;
  Model model;
  Layout layout;
  Imbalance imbalance;
  double microbatch_limit = 0;  // simulate at most so many and extend linearly; 0 for all
  int64_t trace = 0;            // 1 to return every task
};

// Reads the text form. Errors: kInvalidArgument naming line, name or value.
Status ParseRequest(std::string_view text, Request* request);

// Whether the layout is possible at all. Errors: kInvalidArgument with the rule that is broken.
Status Validate(const Request& request);

// Achieved bandwidths of the hardware, and how `ranks` of it are wired.
Ports MakePorts(const Hardware& hardware, int64_t ranks);

}  // namespace anabranch::sim

#endif  // ANABRANCH_SIM_PLANNER_REQUEST_H_
