// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_MPI_MPI_GROUP_H_
#define ANABRANCH_COMM_MPI_MPI_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace anabranch {

// The processes that mpirun has started, in the order of MPI_COMM_WORLD. MPI tells who they are and
// carries what they must know to share memory (HostTransport); rows never travel through it, but
// for benchmarks that show what that would take (mpi_exchange.h).
//   Threads   MPI is called by one thread alone, which this object owns and which initialises it
//             (or finds it initialised with MPI_THREAD_MULTIPLE), on a communicator of its own.
//             Any thread may call these functions, one at a time.
class MpiGroup {
 public:
  // Collective. kUnimplemented when MPI is initialised for fewer threads.
  static Status Create(std::unique_ptr<MpiGroup>* group);
  // Collective. Ends MPI if this object began it.
  ~MpiGroup();

  int rank() const;
  int size() const;
  const std::string& library() const;  // what MPI says it is, one line
  // all[r * bytes, (r + 1) * bytes) = what rank r passed as mine. Collective.
  Status Gather(const void* mine, int64_t bytes, void* all);
  // MPI_Alltoallv: send holds send_rows[0] rows for rank 0, then those for rank 1, ...; receive
  // gets receive_rows[r] rows of rank r, by rank. kUnimplemented: more bytes than an int counts.
  Status AllToAll(const void* send, const int32_t* send_rows, void* receive,
                  const int32_t* receive_rows, int64_t row_bytes);
  Status Barrier();

 private:
  struct State;
  explicit MpiGroup(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_MPI_MPI_GROUP_H_
