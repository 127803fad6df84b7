// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/context.h"
#include "base/stream_copy.h"
#include "comm/expert_parallel/sum_rows.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kRowsPerUnit = 16;

double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// to[i] = from[index[i]]
void GatherRows(const void* from, const int32_t* index, int64_t rows, int64_t row_bytes,
                CopyRow copy, Executor& executor, void* to) {
  executor.ParallelFor(CeilDiv(rows, kRowsPerUnit), [&](int64_t unit, int) {
    const int64_t end = std::min(rows, (unit + 1) * kRowsPerUnit);
    for (int64_t row = unit * kRowsPerUnit; row < end; ++row) {
      copy(static_cast<char*>(to) + row * row_bytes,
           static_cast<const char*>(from) + index[row] * row_bytes, row_bytes);
    }
    StreamFence();
  });
}

void SumReceived(const Exchange& exchange, bool streams, Executor& executor) {
  const int64_t row_bytes = exchange.hidden * kBf16Bytes;
  const auto sum = expert_parallel::FindSums(tile::Kernels().isa).bf16;
  const bool whole_lines =
      row_bytes % kCacheLineBytes == 0 &&
      reinterpret_cast<uintptr_t>(exchange.to) % static_cast<uintptr_t>(kCacheLineBytes) == 0;
  executor.ParallelFor(CeilDiv(exchange.to_rows, kRowsPerUnit), [&](int64_t unit, int) {
    const int64_t end = std::min(exchange.to_rows, (unit + 1) * kRowsPerUnit);
    for (int64_t row = unit * kRowsPerUnit; row < end; ++row) {
      const void* rows[kMaxExchangeTopk];
      for (int64_t j = 0; j < exchange.topk; ++j) {
        rows[j] = static_cast<const char*>(exchange.received) +
                  exchange.unpack[row * exchange.topk + j] * row_bytes;
      }
      sum(rows, exchange.topk, exchange.hidden, streams && whole_lines,
          static_cast<char*>(exchange.to) + row * row_bytes);
    }
    StreamFence();
  });
}

void Unpack(const Exchange& exchange, bool streams, CopyRow copy, Executor& executor) {
  if (exchange.topk > 1) {
    SumReceived(exchange, streams, executor);
  } else {
    GatherRows(exchange.received, exchange.unpack, exchange.to_rows, exchange.hidden * kBf16Bytes,
               copy, executor, exchange.to);
  }
}

}  // namespace

Status TimeExchange(const Exchange& exchange, ExchangeForm form, MpiGroup& group,
                    Executor& executor, double* seconds) {
  if (exchange.topk < 1 || exchange.topk > kMaxExchangeTopk) {
    return InvalidArgument("mpi: exchange of topk=", exchange.topk, "; must be in [1, ",
                           kMaxExchangeTopk, "]");
  }
  const int64_t row_bytes = exchange.hidden * kBf16Bytes;
  const bool streams = form == ExchangeForm::kTuned;
  const CopyRow copy = streams ? CopyStreaming : CopyCached;
  int64_t packed_rows = 0;
  for (int rank = 0; rank < group.size(); ++rank) packed_rows += exchange.send_rows[rank];
  ANABRANCH_RETURN_IF_ERROR(group.Barrier());
  const double start = Seconds();
  if (form != ExchangeForm::kBare) {
    GatherRows(exchange.from, exchange.pack, packed_rows, row_bytes, copy, executor,
               exchange.packed);
  }
  ANABRANCH_RETURN_IF_ERROR(group.AllToAll(exchange.packed, exchange.send_rows, exchange.received,
                                           exchange.receive_rows, row_bytes));
  if (form != ExchangeForm::kBare) Unpack(exchange, streams, copy, executor);
  ANABRANCH_RETURN_IF_ERROR(group.Barrier());
  *seconds = Seconds() - start;
  return Status::Ok();
}

}  // namespace anabranch
