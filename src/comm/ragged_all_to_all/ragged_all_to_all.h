// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_RAGGED_ALL_TO_ALL_RAGGED_ALL_TO_ALL_H_
#define ANABRANCH_COMM_RAGGED_ALL_TO_ALL_RAGGED_ALL_TO_ALL_H_

#include <cstdint>
#include <span>

#include "base/executor.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "comm/transport.h"

namespace anabranch {

// What one rank passes to jax.lax.ragged_all_to_all. A rank sends m pieces to each of N ranks;
// piece i = p * m + u goes to rank p:
//   output_of(p)[output_offsets[i] + j] = operand[input_offsets[i] + j]     0 <= j < send_sizes[i]
// output_offsets are positions in the receiver's output; recv_sizes[i] is what rank p sends here.
//   Layout    rows of row_bytes bytes, any type. Rows of output that nobody writes keep what they
//             held. Pieces that overlap in an output: which one stays is undefined.
//   Empty     no rows, rows of no bytes and empty pieces are normal.
struct RaggedAllToAllArgs {
  const void* operand = nullptr;
  int64_t operand_rows = 0;
  void* output = nullptr;
  int64_t output_rows = 0;
  int64_t row_bytes = 0;
  ConstTensorView input_offsets;   // [N m] i32
  ConstTensorView send_sizes;      // [N m] i32
  ConstTensorView output_offsets;  // [N m] i32
  ConstTensorView recv_sizes;      // [N m] i32
};

// Moves all pieces of all ranks, whose memory this thread can reach: ranks[r] is rank r's.
//   Memory    allocates a few words a piece and megabyte.
//   Errors    kInvalidArgument (shapes, types, a send size that is not the receiver's recv size),
//             kOutOfRange (a piece outside its array): rank and piece are named. Outputs are
//             untouched on error.
//   Threads   work is spread over the executor; the same bits for any number of threads.
Status RaggedAllToAllTogether(std::span<const RaggedAllToAllArgs* const> ranks, Executor& executor);

// One rank's part of the same: blocks until all ranks have done theirs. A rank shows the rows that
// it sends to others once, however many want them, and takes those that it receives.
//   Errors    the same, on every rank, with the number of the rank that found them in front.
//   Threads   collective over the transport's ranks; work is spread over the executor.
Status RaggedAllToAll(const RaggedAllToAllArgs& args, const Call& call, Transport& transport,
                      Executor& executor);

// The transpose. In args, `output` is the gradient of the result and is only read; operand is not
// read. d_operand and d_output have the shapes of operand and output:
//   d_operand[input_offsets[i] + j] = sum over pieces i, ascending, of
//                                     output_of(p)[output_offsets[i] + j]
//   d_output = output, with zeros in rows that some rank wrote
//   Numerics  a row that is sent once is copied; further pieces are added one after the other, each
//             sum rounded to the type. f32 or bf16.
struct RaggedAllToAllGradArgs {
  RaggedAllToAllArgs args;
  DType dtype = DType::kF32;
  void* d_operand = nullptr;
  void* d_output = nullptr;
};
Status RaggedAllToAllGradTogether(std::span<const RaggedAllToAllGradArgs* const> ranks,
                                  Executor& executor);

// One rank's part of the same, on the calling thread. All of args.output is shown to the others.
Status RaggedAllToAllGrad(const RaggedAllToAllGradArgs& args, const Call& call,
                          Transport& transport);

// The oracles: arguments are taken as valid.
void RaggedAllToAllReference(std::span<const RaggedAllToAllArgs* const> ranks);
void RaggedAllToAllGradReference(std::span<const RaggedAllToAllGradArgs* const> ranks);

}  // namespace anabranch

#endif  // ANABRANCH_COMM_RAGGED_ALL_TO_ALL_RAGGED_ALL_TO_ALL_H_
