// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Run under mpirun: every process is a rank and runs every test.
#include "comm/mpi/mpi_group.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "base/element.h"
#include "comm/mpi/mpi_exchange.h"
#include "comm/processes/host_transport.h"
#include "comm/transport_conformance_test.h"

namespace anabranch {
namespace {

// MPI can be initialised once a process: one group serves all tests.
MpiGroup* group = nullptr;

TEST(MpiGroup, GathersInTheOrderOfRanks) {
  const int32_t mine[] = {group->rank(), 10 * group->rank()};
  std::vector<int32_t> all(2 * group->size(), -1);
  ASSERT_TRUE(group->Gather(mine, sizeof(mine), all.data()).ok());
  for (int rank = 0; rank < group->size(); ++rank) {
    EXPECT_EQ(all[2 * rank], rank);
    EXPECT_EQ(all[2 * rank + 1], 10 * rank);
  }
  EXPECT_FALSE(group->library().empty());
}

// Calls come from a thread that did not initialise MPI: openxla/xla issue 16430.
TEST(MpiGroup, CarriesATransportFromAnyThread) {
  std::thread thread([] {
    std::unique_ptr<HostTransport> transport;
    const Status status = HostTransport::Create(
        group->rank(), group->size(), std::chrono::seconds(60),
        [](const void* mine, int64_t bytes, void* all) { return group->Gather(mine, bytes, all); },
        &transport);
    ASSERT_TRUE(status.ok()) << status.message();
    conformance::CheckConformance(*transport);
  });
  thread.join();
}

// Rank s sends s + 1 + d rows to rank d, the last of its rows first; the receiver takes them last
// row first, and adds up each row and its neighbour. Row r of rank s holds 10 s + r.
TEST(MpiExchange, PacksExchangesAndUnpacks) {
  const int32_t ranks = group->size(), rank = group->rank();
  constexpr int64_t kHidden = 96;
  std::vector<int32_t> send, receive, pack, values;
  for (int32_t other = 0; other < ranks; ++other) {
    send.push_back(rank + 1 + other);
    receive.push_back(other + 1 + rank);
    for (int32_t i = send.back(); i-- > 0;) pack.push_back(i);
    for (int32_t i = receive.back(); i-- > 0;) values.push_back(10 * other + i);
  }
  const auto rows = static_cast<int32_t>(values.size());
  std::vector<BF16> from(pack.size() * kHidden), packed(from.size()), received(rows * kHidden);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = FromFloat<BF16>(static_cast<float>(10 * rank + i / kHidden));
  }
  ThreadExecutor executor(2);
  for (const ExchangeForm form : {ExchangeForm::kPlain, ExchangeForm::kTuned}) {
    for (const int64_t topk : {1, 2}) {
      std::vector<int32_t> unpack;
      std::vector<float> expected;
      for (int32_t row = rows; row-- > 0;) {
        unpack.push_back(row);
        expected.push_back(static_cast<float>(values[row]));
        if (topk == 1) continue;
        unpack.push_back(row / 2);
        expected.back() += static_cast<float>(values[row / 2]);
      }
      std::vector<BF16> to(rows * kHidden);
      const Exchange exchange = {
          from.data(),   pack.data(), send.data(), receive.data(), packed.data(), received.data(),
          unpack.data(), to.data(),   rows,        topk,           kHidden};
      double seconds = -1;
      const Status status = TimeExchange(exchange, form, *group, executor, &seconds);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_GT(seconds, 0);
      for (int64_t i = 0; i < rows * kHidden; ++i) {
        ASSERT_EQ(ToFloat(to[i]), expected[i / kHidden]) << i << " topk " << topk;
      }
    }
  }
}

TEST(MpiExchange, RefusesMoreThanMpiCounts) {
  const std::vector<int32_t> rows(group->size(), 1 << 20);
  const Status status = group->AllToAll(nullptr, rows.data(), nullptr, rows.data(), 1 << 20);
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace anabranch

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::unique_ptr<anabranch::MpiGroup> group;
  const anabranch::Status status = anabranch::MpiGroup::Create(&group);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  anabranch::group = group.get();
  return RUN_ALL_TESTS();
}
