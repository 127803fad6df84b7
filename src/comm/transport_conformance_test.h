// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_TRANSPORT_CONFORMANCE_TEST_H_
#define ANABRANCH_COMM_TRANSPORT_CONFORMANCE_TEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport.h"

// What every transport must do. Each function is one rank's part: run it on all ranks at once, in
// threads or in processes. A new transport's test calls CheckConformance on each rank.
namespace anabranch::conformance {

// Gathers of any size, none included, hold everybody's bytes.
inline void CheckAllGather(Transport& transport, int64_t run) {
  for (const int64_t count : {0, 1, 3, 1000}) {
    std::vector<int32_t> mine(count);
    std::vector<int32_t> all(count * transport.size(), -1);
    for (int64_t i = 0; i < count; ++i) mine[i] = static_cast<int32_t>(1000 * transport.rank() + i);
    const Status status =
        transport.AllGather({"gather", run, 1, count}, mine.data(),
                            count * static_cast<int64_t>(sizeof(int32_t)), all.data());
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t i = 0; i < count * transport.size(); ++i) {
      ASSERT_EQ(all[i], 1000 * (i / count) + i % count);
    }
  }
}

// Two windows of sizes that differ between ranks. Every rank writes its stripe of every window.
inline void CheckPeersWrite(Transport& transport, int64_t run) {
  const int size = transport.size();
  const auto count_of = [size](int rank) { return rank == 0 ? 0 : 2 * size + 100 * rank; };
  std::vector<int32_t> first(count_of(transport.rank()) + 1, -5);
  std::vector<int32_t> second(3 * size + 1, -5);
  const Window windows[] = {{first.data(), 4 * count_of(transport.rank())},
                            {second.data(), 4 * 3 * size}};
  const Status status = transport.Share(
      {"write", run, 2, 0}, windows, Access::kPeersWrite, [&](std::span<const Window> peers) {
        for (int rank = 0; rank < size; ++rank) {
          auto* to = static_cast<int32_t*>(peers[2 * rank].data);
          for (int i = transport.rank(); i < count_of(rank); i += size) {
            to[i] = transport.rank();
          }
          static_cast<int32_t*>(peers[2 * rank + 1].data)[3 * transport.rank()] = rank;
        }
        return Status::Ok();
      });
  ASSERT_TRUE(status.ok()) << status.message();
  for (int i = 0; i < count_of(transport.rank()); ++i) {
    ASSERT_EQ(first[i], i % size) << i;
  }
  EXPECT_EQ(first.back(), -5);
  for (int i = 0; i < size; ++i) ASSERT_EQ(second[3 * i], transport.rank());
  EXPECT_EQ(second.back(), -5);
}

// Two windows of sizes that differ between ranks, none included. Of the second every rank keeps
// some; the others read the rest.
inline void CheckKeptParts(Transport& transport, int64_t run) {
  const int size = transport.size();
  constexpr int kCount = 40;
  const auto count_of = [](int rank) { return rank == 0 ? 0 : 3 + 100 * rank; };
  const auto kept_of = [](int rank) { return ByteRange{4 * rank, 4 * (rank + 2)}; };
  std::vector<int32_t> first(count_of(transport.rank()), transport.rank());
  std::vector<int32_t> second(kCount);
  for (int i = 0; i < kCount; ++i) second[i] = 1000 * transport.rank() + i;
  const ByteRange kept[] = {kept_of(transport.rank()), {4 * (kCount - 1), 4 * kCount}};
  const Window windows[] = {{first.data(), 4 * count_of(transport.rank())},
                            {second.data(), 4 * kCount, kept}};
  const auto read = [&](std::span<const Window> peers) {
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(peers[2 * rank].bytes, 4 * count_of(rank));
      EXPECT_EQ(peers[2 * rank + 1].bytes, 4 * kCount);
      const auto* all = static_cast<const int32_t*>(peers[2 * rank].data);
      for (int i = 0; i < count_of(rank); ++i) EXPECT_EQ(all[i], rank);
      const auto* some = static_cast<const int32_t*>(peers[2 * rank + 1].data);
      for (int i = 0; i < kCount - 1; ++i) {
        const bool is_kept = 4 * i >= kept_of(rank).begin && 4 * i < kept_of(rank).end;
        if (is_kept && rank != transport.rank()) continue;
        EXPECT_EQ(some[i], 1000 * rank + i);
      }
    }
    return Status::Ok();
  };
  const Status status = transport.Share({"keep", run, 5, 0}, windows, Access::kPeersRead, read);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Megabytes, read by all; repeated with new contents, so that a buffer that is reused too early
// shows: deepseek-ai/DeepEP issues 580, 166, 513, ROCm/mori issue 80. Ranks are delayed at random.
inline void CheckPeersRead(Transport& transport, int64_t run) {
  constexpr int64_t kCount = 1 << 17;
  std::mt19937 generator(static_cast<unsigned>(transport.rank()));
  std::vector<int64_t> mine(kCount);
  for (int64_t round = 0; round < 6; ++round) {
    for (int64_t i = 0; i < kCount; ++i) mine[i] = i * (round + 1) + transport.rank();
    std::this_thread::sleep_for(std::chrono::microseconds(generator() % 3000));
    const Window window = {mine.data(), kCount * 8};
    int64_t faults = 0;
    const Status status = transport.Share({"read", run, 3, round}, {&window, 1}, Access::kPeersRead,
                                          [&](std::span<const Window> peers) {
                                            for (int rank = 0; rank < transport.size(); ++rank) {
                                              const auto* theirs =
                                                  static_cast<const int64_t*>(peers[rank].data);
                                              for (int64_t i = 0; i < kCount; ++i)
                                                faults += theirs[i] != i * (round + 1) + rank;
                                            }
                                            return Status::Ok();
                                          });
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(faults, 0);
    std::fill(mine.begin(), mine.end(), -1);
  }
}

// One rank's error reaches all, with its number, and the transport stays usable.
inline void CheckErrorsReachEverybody(Transport& transport, int64_t run) {
  const int culprit = transport.size() - 1;
  const Window window = {nullptr, 0};
  const Status status = transport.Share(
      {"fail", run, 4, 0}, {&window, 1}, Access::kPeersRead, [&](std::span<const Window>) {
        return transport.rank() == culprit ? InvalidArgument("bad plan") : Status::Ok();
      });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "rank " + std::to_string(culprit) + ": bad plan");
  CheckAllGather(transport, run);
}

inline void CheckConformance(Transport& transport) {
  ASSERT_GE(transport.rank(), 0);
  ASSERT_LT(transport.rank(), transport.size());
  for (int64_t run = 0; run < 3; ++run) {
    CheckAllGather(transport, run);
    CheckPeersWrite(transport, run);
    CheckPeersRead(transport, run);
    CheckKeptParts(transport, run);
    CheckErrorsReachEverybody(transport, run);
  }
}

}  // namespace anabranch::conformance

#endif  // ANABRANCH_COMM_TRANSPORT_CONFORMANCE_TEST_H_
