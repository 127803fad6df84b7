// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_PROCESSES_HOST_TRANSPORT_H_
#define ANABRANCH_COMM_PROCESSES_HOST_TRANSPORT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "comm/transport.h"

namespace anabranch {

// Ranks that are processes of one host. They meet and exchange rows in shared memory.
//   Memory    each rank's windows travel through a segment of its own, which grows as needed.
//             Nothing is left behind when a rank dies, however it dies.
//   Waiting   ranks park on a futex; none spins. A rank that waits sees within kLivenessPeriod
//             that another has ended.
//   Errors    after kDeadlineExceeded, or a disagreement, ranks are out of step: every later call
//             returns the same error again.
class HostTransport final : public Transport {
 public:
  static constexpr std::chrono::milliseconds kLivenessPeriod{50};

  // Gathers `bytes` bytes of every rank in `all`, by whatever means started the processes.
  using Gather = std::function<Status(const void* mine, int64_t bytes, void* all)>;

  // Collective; gathers twice. kUnimplemented when the ranks are not all on this host.
  static Status Create(int rank, int size, std::chrono::milliseconds timeout, const Gather& gather,
                       std::unique_ptr<HostTransport>* transport);
  // The same for some of the ranks of `whole`, which must outlive it: rank i is `members[i]` there,
  // and errors call it so. `gather` is among the members.
  static Status CreatePart(const HostTransport& whole, const std::vector<int>& members,
                           std::chrono::milliseconds timeout, const Gather& gather,
                           std::unique_ptr<HostTransport>* transport);
  ~HostTransport() override;

  int rank() const override;
  int size() const override;
  Status AllGather(const Call& call, const void* mine, int64_t bytes, void* all) override;
  Status Share(const Call& call, std::span<const Window> windows, Access access,
               const Body& body) override;
  bool shares_memory() const override { return true; }
  Status AwaitFirst(Call* call) override;

  void set_timeout(std::chrono::milliseconds timeout);

 private:
  struct State;
  explicit HostTransport(std::unique_ptr<State> state);
  // Finds the other ranks' memory. names: what errors call the ranks.
  static Status Connect(const std::vector<int>& names, const Gather& gather,
                        std::unique_ptr<State> state, std::unique_ptr<HostTransport>* transport);

  // Arrives with a record of the call, checks it against the others', and makes room.
  Status Begin(const Call& call, int64_t bytes, std::span<const Window> windows);
  // Waits until all ranks have come this far.
  Status Barrier(const Call& call);
  // Waits until one rank has reached as many barriers as `goal`; any rank that ends before it has
  // come so far, which may be what keeps the awaited one, is an error.
  Status AwaitRank(const Call& call, int other, uint32_t goal);

  const std::unique_ptr<State> state_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_PROCESSES_HOST_TRANSPORT_H_
