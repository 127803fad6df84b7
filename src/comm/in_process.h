// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_IN_PROCESS_H_
#define ANABRANCH_COMM_IN_PROCESS_H_

#include "comm/meeting_place.h"
#include "comm/transport.h"

namespace anabranch {

// Ranks that are threads of one process: each reaches the others' memory as it is. The time that a
// rank waits is the meeting place's; `group` tells apart the groups that use one place.
class InProcessTransport final : public Transport {
 public:
  InProcessTransport(MeetingPlace* place, int64_t group, int rank, int size)
      : place_(place), group_(group), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status AllGather(const Call& call, const void* mine, int64_t bytes, void* all) override;
  Status Share(const Call& call, std::span<const Window> windows, Access access,
               const Body& body) override;
  bool shares_memory() const override { return true; }

 private:
  // Arrives with `post` and waits, parked, for the meeting's status.
  Status Meet(const Call& call, const void* post,
              std::function<Status(std::span<const void* const>)> work);

  MeetingPlace* place_;
  int64_t group_;
  int rank_;
  int size_;
};

}  // namespace anabranch

#endif  // ANABRANCH_COMM_IN_PROCESS_H_
