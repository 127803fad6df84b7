// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TESTS_SIMGRID_MESSAGE_TRANSPORT_H_
#define ANABRANCH_TESTS_SIMGRID_MESSAGE_TRANSPORT_H_

#include <cstdint>
#include <vector>

#include "comm/transport.h"

namespace anabranch {

// Ranks that share no memory, over MPI messages: what a body writes into a peer's window is written
// into a copy here and sent afterwards, and what the peers wrote here is what they fetch in a later
// kPeersRead call with windows of the same sizes. For dispatch and its combine these are the rows
// that must travel, and no others do.
//   Limits  a window's words (four bytes) that a body sets to zero are not noticed; every size is a
//           multiple of four; kPeersRead needs a kPeersWrite before it.
class MessageTransport final : public Transport {
 public:
  MessageTransport();  // of MPI_COMM_WORLD
  ~MessageTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status AllGather(const Call& call, const void* mine, int64_t bytes, void* all) override;
  Status Share(const Call& call, std::span<const Window> windows, Access access,
               const Body& body) override;
  // Bytes of the messages that the last Share sent to each rank.
  const std::vector<int64_t>& sent() const { return sent_; }

 private:
  struct Piece {
    int64_t window, offset, bytes;
  };
  using Pieces = std::vector<Piece>;

  Status MakeCopies(std::span<const Window> windows);
  void DropCopies();
  Pieces FindWritten(int peer) const;
  void ExchangePieces();
  void Exchange(bool back);

  int rank_ = 0;
  int size_ = 1;
  int64_t num_windows_ = 0;
  std::vector<int64_t> window_bytes_;  // [size, num_windows]
  std::vector<void*> views_;      // [size, num_windows]: this rank's own, copies of the others'
  std::vector<Pieces> written_;   // by this rank, in each peer's windows
  std::vector<Pieces> received_;  // by each peer, in this rank's
  std::vector<int64_t> sent_;
};

}  // namespace anabranch

#endif  // ANABRANCH_TESTS_SIMGRID_MESSAGE_TRANSPORT_H_
