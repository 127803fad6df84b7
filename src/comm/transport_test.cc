// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "comm/in_process.h"
#include "comm/simulated.h"
#include "comm/transport_conformance_test.h"

namespace anabranch {
namespace {

using std::chrono::milliseconds;

// Runs body(transport) on `size` threads; `skip` does not take part.
void OnRanks(MeetingPlace& place, int size, const std::function<void(Transport&)>& body,
             int skip = -1) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == skip) continue;
    threads.emplace_back([&, rank] {
      InProcessTransport transport(&place, 0, rank, size);
      body(transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// More ranks than cores included.
TEST(InProcessTransport, Conforms) {
  for (const int size : {1, 2, 8}) {
    MeetingPlace place(milliseconds(60000));
    OnRanks(place, size, conformance::CheckConformance);
  }
}

TEST(InProcessTransport, ADeadRankIsNamedByEveryOther) {
  MeetingPlace place(milliseconds(100));
  OnRanks(
      place, 3,
      [](Transport& transport) {
        const Window window = {nullptr, 0};
        const Status status =
            transport.Share({"dispatch", 7, 3, 0}, {&window, 1}, Access::kPeersWrite,
                            [](std::span<const Window>) { return Status::Ok(); });
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_EQ(status.message().substr(0, 52),
                  "dispatch (run 7, site 3): rank 1 did not come within");
      },
      /*skip=*/1);
}

// The rank stalls while the others wait for it to finish its part.
TEST(InProcessTransport, AStalledRankIsNamedAndFindsTheErrorToo) {
  MeetingPlace place(milliseconds(100));
  OnRanks(place, 3, [](Transport& transport) {
    const Window window = {nullptr, 0};
    const Status status = transport.Share({"combine", 1, 1, 0}, {&window, 1}, Access::kPeersRead,
                                          [&](std::span<const Window>) {
                                            if (transport.rank() == 2)
                                              std::this_thread::sleep_for(milliseconds(400));
                                            return Status::Ok();
                                          });
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(status.message().find("rank 2 did not come"), std::string::npos);
  });
}

TEST(InProcessTransport, RanksThatDisagreeAreToldHow) {
  MeetingPlace place(milliseconds(60000));
  OnRanks(place, 2, [](Transport& transport) {
    std::vector<char> all(4);
    const Status sizes =
        transport.AllGather({"gather", 1, 1, 0}, "ab", 1 + transport.rank(), all.data());
    EXPECT_EQ(sizes.message(), "gather: rank 1 gathers 2 bytes, rank 0 1");
    const Status operations = transport.AllGather(
        {transport.rank() == 0 ? "prepare" : "combine", 1, 2, 0}, nullptr, 0, nullptr);
    EXPECT_NE(operations.message().find("calls prepare"), std::string::npos);
    EXPECT_NE(operations.message().find("calls combine"), std::string::npos);
  });
}

TEST(SimulatedTransport, RecordsWhatWouldTravel) {
  SimulatedTransport transport(1, 4, [](int rank, int64_t bytes, void* contribution) {
    std::memset(contribution, rank, bytes);
  });
  char all[8];
  ASSERT_TRUE(transport.AllGather({"prepare", 0, 0, 0}, "xy", 2, all).ok());
  EXPECT_EQ(std::string(all, 8), std::string("\0\0xy\2\2\3\3", 8));
  const ByteRange kept = {10, 40};
  const Window windows[] = {{nullptr, 100, {&kept, 1}}, {nullptr, 20}};
  ASSERT_TRUE(transport
                  .Share({"combine", 0, 0, 0}, windows, Access::kPeersRead,
                         [](std::span<const Window>) { return InvalidArgument("must not run"); })
                  .ok());
  ASSERT_EQ(transport.records().size(), 2u);
  EXPECT_EQ(transport.records()[0].gathered_bytes, 6);
  EXPECT_EQ(transport.records()[1].operation, "combine");
  EXPECT_EQ(transport.records()[1].window_bytes, 90);
}

}  // namespace
}  // namespace anabranch
