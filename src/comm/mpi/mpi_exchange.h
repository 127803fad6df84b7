// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_MPI_MPI_EXCHANGE_H_
#define ANABRANCH_COMM_MPI_MPI_EXCHANGE_H_

#include <cstdint>

#include "base/executor.h"
#include "base/status.h"
#include "comm/mpi/mpi_group.h"

namespace anabranch {

// How programs move routed rows without a fused pass, for benchmarks to compare with: pack the rows
// by the rank that they go to, MPI_Alltoallv, and take what has come in the order that is wanted.
enum class ExchangeForm : int32_t {
  kPlain,  // rows are copied through the caches
  kTuned,  // past them, as the engine does with large payloads
  kBare,   // MPI_Alltoallv alone: from packed to received
};

// Rows are bf16 [hidden]; N ranks. A C struct: Python fills it.
//   packed[i] = from[pack[i]]           0 <= i < sum of send_rows, those for rank 0 first
//   received = what the ranks have packed for this one, by rank
//   to[r] = received[unpack[r]]                                         topk == 1
//   to[r] = sum over j < topk, in f32, of received[unpack[r * topk + j]]  else; rounded once
struct Exchange {
  const void* from;
  const int32_t* pack;
  const int32_t* send_rows;     // [N]
  const int32_t* receive_rows;  // [N]
  void* packed;
  void* received;
  const int32_t* unpack;  // [to_rows, topk]
  void* to;               // [to_rows, hidden]
  int64_t to_rows;
  int64_t topk;  // at most kMaxExchangeTopk
  int64_t hidden;
};
inline constexpr int64_t kMaxExchangeTopk = 64;

// Runs the exchange once, after a barrier, and writes this rank's seconds until all are done.
//   Errors    kInvalidArgument: topk out of range. kUnimplemented: more bytes than MPI_Alltoallv
//             counts. kInternal: MPI failed.
//   Threads   collective; packing and unpacking are spread over the executor.
Status TimeExchange(const Exchange& exchange, ExchangeForm form, MpiGroup& group,
                    Executor& executor, double* seconds);

}  // namespace anabranch

#endif  // ANABRANCH_COMM_MPI_MPI_EXCHANGE_H_
