// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Prepare, Dispatch and Combine as each rank calls them, over MPI messages that SimGrid times
// (SMPI), beside what the planner's network says of the same exchange. Run by smpirun.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/context.h"
#include "comm/expert_parallel/combine.h"
#include "comm/expert_parallel/dispatch.h"
#include "comm/expert_parallel/prepare.h"
#include "sim/engine/network.h"
#include "sim/planner/costs.h"
#include "simgrid/message_transport.h"
#include "simgrid/two_level_platform.h"

namespace anabranch::expert_parallel {
namespace {

constexpr int64_t kExperts = 256;
constexpr int64_t kTopk = 8;
constexpr int64_t kTokens = 128;  // of a rank
constexpr int64_t kHidden = 512;

// One rank's buffers. A token's x is the same in all columns and never zero.
struct Rank {
  // `hot`: share of the tokens that choose among the first quarter of the experts.
  Rank(int rank, int ranks, double hot) : table(kExperts) {
    for (int64_t e = 0; e < kExperts; ++e) {
      table[e] = static_cast<int32_t>(EvenRankOfExpert(e, kExperts, ranks));
    }
    std::mt19937 random(rank + 1);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<int32_t> all(kExperts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t token = 0; token < kTokens; ++token) {
      std::sort(all.begin(), all.end());
      const int64_t choice = uniform(random) < hot ? kExperts / 4 : kExperts;
      std::shuffle(all.begin(), all.begin() + choice, random);
      experts.insert(experts.end(), all.begin(), all.begin() + kTopk);
      x.insert(x.end(), kHidden, ToBF16(static_cast<float>(1 + (token + rank) % 31)));
    }
    const Group group{
        .ranks = ranks, .num_experts = kExperts, .topk = kTopk, .rank_of_expert = table.data()};
    const int64_t local = MaxLocalExperts(group);
    capacity = 3 * kTokens * kTopk;  // more than the hot experts' ranks need
    plan.resize(PlanWords(group, kTokens));
    sizes.resize(local);
    offsets.resize(local + 1);
    rows.resize(capacity * kHidden, ToBF16(NAN));
    row_weights.resize(capacity);
    y.resize(kTokens * kHidden);
    weights.resize(kTokens * kTopk, 0.5f);
    home.resize(kTokens * kTopk);
  }

  Status Prepare(Transport& transport) {
    const int64_t local = static_cast<int64_t>(sizes.size());
    const PrepareArgs args{.experts = ConstTensorView(experts.data(), {kTokens, kTopk}),
                           .rank_of_expert = ConstTensorView(table.data(), {kExperts}),
                           .capacity = capacity,
                           .plan = PlanView(),
                           .group_sizes = TensorView(sizes.data(), {local}),
                           .group_offsets = TensorView(offsets.data(), {local + 1}),
                           .report = TensorView(report, {3})};
    return expert_parallel::Prepare(args, Call{"prepare", 0, 0, 0}, transport);
  }
  Status Dispatch(Transport& transport) {
    SerialExecutor executor;
    const DispatchArgs args{PlanView(), ConstTensorView(x.data(), {kTokens, kHidden}),
                            ConstTensorView(weights.data(), {kTokens, kTopk}),
                            TensorView(rows.data(), {capacity, kHidden}),
                            TensorView(row_weights.data(), {capacity})};
    return expert_parallel::Dispatch(args, Call{"dispatch", 0, 1, 0}, transport, executor);
  }
  Status Combine(Transport& transport) {
    SerialExecutor executor;
    const CombineArgs args{PlanView(), TensorView(rows.data(), {capacity, kHidden}),
                           TensorView(row_weights.data(), {capacity}),
                           TensorView(y.data(), {kTokens, kHidden}),
                           TensorView(home.data(), {kTokens, kTopk})};
    return expert_parallel::Combine(args, Call{"combine", 0, 2, 0}, transport, executor);
  }
  // Every row went to its expert and back: a token's sum is k times its x.
  bool IsRight() const {
    for (size_t i = 0; i < y.size(); ++i) {
      if (ToFloat(y[i]) != kTopk * ToFloat(x[i])) return false;
    }
    return std::all_of(home.begin(), home.end(), [](float weight) { return weight == 0.5f; });
  }
  TensorView PlanView() { return TensorView(plan.data(), {static_cast<int64_t>(plan.size())}); }

  int64_t capacity;
  std::vector<int32_t> table, experts, plan, sizes, offsets;
  int32_t report[3];
  std::vector<BF16> x, y, rows;
  std::vector<float> weights, row_weights, home;
};

// One exchange as SimGrid saw it.
struct Exchange {
  double seconds = 0;          // simulated, until the last rank had done its part
  std::vector<int64_t> bytes;  // [from, to]
};

// Runs `call` on every rank at once; the result is complete on rank 0.
template <typename Function>
bool Measure(MessageTransport& transport, const Function& call, Exchange* exchange) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  const Status status = call();
  const double mine = MPI_Wtime() - begin;
  if (!status.ok()) std::printf("rank %d: %s\n", transport.rank(), status.message().c_str());
  const int size = transport.size();
  exchange->bytes.resize(size * size);
  MPI_Reduce(&mine, &exchange->seconds, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Gather(transport.sent().data(), size, MPI_INT64_T, exchange->bytes.data(), size, MPI_INT64_T,
             0, MPI_COMM_WORLD);
  return status.ok();
}

// Bytes on one kind of port: the busiest one's, and the mean.
struct Load {
  double most = 0;
  double mean = 0;
};

// Of the ports into the domain, and of the NICs.
std::pair<Load, Load> OfPorts(const Exchange& exchange, int ranks) {
  std::vector<double> load(4 * ranks, 0.0);  // scale-up out, in; NIC out, in
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      const double bytes = static_cast<double>(exchange.bytes[from * ranks + to]);
      const int kind = from / sim::kDomain == to / sim::kDomain ? 0 : 2;
      load[kind * ranks + from] += bytes;
      load[(kind + 1) * ranks + to] += bytes;
    }
  }
  const auto summary = [&](int first) {
    const auto begin = load.begin() + first * ranks;
    return Load{*std::max_element(begin, begin + 2 * ranks),
                std::accumulate(begin, begin + 2 * ranks, 0.0) / (2 * ranks)};
  };
  return {summary(0), summary(2)};
}

// What the planner says from the model alone, given how far the busiest ports are above the mean.
double Planned(int ranks, const Load& up, const Load& out) {
  sim::Request request;
  const sim::Ports ports = sim::TestPorts();
  request.hardware.bf16_flops = request.hardware.hbm_bandwidth = 1;
  request.hardware.scale_up_bandwidth = ports.scale_up;
  request.hardware.scale_out_bandwidth = ports.scale_out;
  request.hardware.scale_up_domain = ports.domain;
  request.model.hidden = kHidden;
  request.model.experts = kExperts;
  request.model.topk = kTopk;
  request.model.expert_width = 1;
  request.layout.ranks = request.layout.ep = ranks;
  request.layout.sequence = kTokens;
  request.layout.dedup = 0;  // every row is a copy
  const double out_load = out.mean > 0 ? out.most / out.mean : 1;
  return sim::MakeExpertCosts(request, up.most / up.mean, out_load).dispatch.Seconds();
}

// Whether the planner's network, told the bytes, is within two percent of SimGrid; for rows alone
// (`bare`: no places of rows beside them) also what it plans without being told.
bool Check(const char* name, bool bare, const Exchange& exchange, int ranks) {
  const auto [up, out] = OfPorts(exchange, ranks);
  const sim::Ports ports = sim::TestPorts();
  const sim::Group group = sim::MakeGroup(ports, ranks, 1);
  const double network = sim::AllToAll(ports, group, up.most, out.most).Seconds();
  const double planned = Planned(ranks, up, out);
  std::printf(
      "%2d ranks, busiest %.2f times the mean, %s: SimGrid %.2f us, the network of its bytes "
      "%.2f us (%+.2f %%), planned %.2f us (%+.2f %%)\n",
      ranks, up.most / up.mean, name, 1e6 * exchange.seconds, 1e6 * network,
      100 * (network / exchange.seconds - 1), 1e6 * planned,
      100 * (planned / exchange.seconds - 1));
  return std::abs(network / exchange.seconds - 1) < 0.02 &&
         (!bare || std::abs(planned / exchange.seconds - 1) < 0.02);
}

bool Run(double hot) {
  MessageTransport transport;
  const int ranks = transport.size();
  Rank rank(transport.rank(), ranks, hot);
  const Status status = rank.Prepare(transport);
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  Exchange dispatch;
  Exchange combine;
  bool right = status.ok();
  right &= Measure(
      transport, [&] { return rank.Dispatch(transport); }, &dispatch);
  right &= Measure(
      transport, [&] { return rank.Combine(transport); }, &combine);
  right = right && rank.IsRight();
  int mine = right ? 1 : 0;
  int all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (transport.rank() == 0) {
    if (all == 0) std::printf("%d ranks: a result is wrong\n", ranks);
    if (!Check("dispatch", false, dispatch, ranks)) all = 0;
    if (!Check("combine", true, combine, ranks)) all = 0;
  }
  MPI_Bcast(&all, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return all == 1;
}

}  // namespace
}  // namespace anabranch::expert_parallel

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const bool balanced = anabranch::expert_parallel::Run(0);
  const bool skewed = anabranch::expert_parallel::Run(0.3);
  MPI_Finalize();
  return balanced && skewed ? 0 : 1;
}
