// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/simulated.h"

#include <cstring>
#include <utility>

namespace anabranch {

SimulatedTransport::SimulatedTransport(int rank, int size, Peer peer)
    : rank_(rank), size_(size), peer_(std::move(peer)) {}

Status SimulatedTransport::AllGather(const Call& call, const void* mine, int64_t bytes, void* all) {
  char* to = static_cast<char*>(all);
  for (int rank = 0; bytes > 0 && rank < size_; ++rank) {
    if (rank == rank_) {
      std::memcpy(to + rank * bytes, mine, bytes);
    } else {
      peer_(rank, bytes, to + rank * bytes);
    }
  }
  records_.push_back({call.operation, bytes * (size_ - 1), 0});
  return Status::Ok();
}

Status SimulatedTransport::Share(const Call& call, std::span<const Window> windows,
                                 Access /*access*/, const Body& /*body*/) {
  int64_t total = 0;
  for (const Window& window : windows) {
    total += window.bytes;
    for (const ByteRange& range : window.kept) total -= range.end - range.begin;
  }
  records_.push_back({call.operation, 0, total});
  return Status::Ok();
}

}  // namespace anabranch
