// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_MPI_MPI_TRANSPORT_H_
#define ANABRANCH_COMM_MPI_MPI_TRANSPORT_H_

#include <chrono>
#include <memory>

#include "comm/transport.h"

namespace anabranch {

// The processes that mpirun has started on one host, in the order of MPI_COMM_WORLD.
//   MPI       is called by one thread alone, which this object owns and which initialises it (or
//             finds it initialised with MPI_THREAD_MULTIPLE), on a communicator of its own. Any
//             thread may make the calls below. MPI sets up shared memory and is then idle.
//   Memory    each rank's windows travel through a segment of a shared window. It grows when any
//             rank needs more, on all ranks together. Nothing is left behind when a rank dies.
//   Waiting   ranks park on a futex in shared memory; none spins.
//   Errors    after kDeadlineExceeded ranks are out of step: every later call returns it again.
class MpiTransport final : public Transport {
 public:
  // Collective. kUnimplemented when the ranks are not all on this host.
  static Status Create(std::chrono::milliseconds timeout, std::unique_ptr<MpiTransport>* transport);
  // Collective unless a call has failed. Ends MPI if this object began it.
  ~MpiTransport() override;

  int rank() const override;
  int size() const override;
  Status AllGather(const Call& call, const void* mine, int64_t bytes, void* all) override;
  Status Share(const Call& call, std::span<const Window> windows, Access access,
               const Body& body) override;

 private:
  struct State;
  explicit MpiTransport(std::unique_ptr<State> state);

  // Arrives with a record of the call, checks it against the others', and makes room.
  Status Begin(const Call& call, int64_t bytes, std::span<const Window> windows);
  // Waits until all ranks have come this far.
  Status Barrier(const Call& call);

  const std::unique_ptr<State> state_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_MPI_MPI_TRANSPORT_H_
