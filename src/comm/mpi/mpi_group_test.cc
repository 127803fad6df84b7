// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Run under mpirun: every process is a rank and runs every test.
#include "comm/mpi/mpi_group.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

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
