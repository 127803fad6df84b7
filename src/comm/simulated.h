// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_SIMULATED_H_
#define ANABRANCH_COMM_SIMULATED_H_

#include <functional>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace anabranch {

// One rank of a group whose other ranks do not exist: calls return at once and are recorded. What
// the others would contribute to a gather is asked of `peer`; shared windows are recorded and their
// body is not run, since no payload moves.
class SimulatedTransport final : public Transport {
 public:
  struct Record {
    std::string operation;
    int64_t gathered_bytes;  // that this rank would receive from the others
    int64_t window_bytes;    // of this rank's windows, without what they keep
  };
  // Writes the `bytes` bytes that `rank` would contribute.
  using Peer = std::function<void(int rank, int64_t bytes, void* contribution)>;

  SimulatedTransport(int rank, int size, Peer peer);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status AllGather(const Call& call, const void* mine, int64_t bytes, void* all) override;
  Status Share(const Call& call, std::span<const Window> windows, Access access,
               const Body& body) override;
  const std::vector<Record>& records() const { return records_; }

 private:
  int rank_;
  int size_;
  Peer peer_;
  std::vector<Record> records_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_SIMULATED_H_
