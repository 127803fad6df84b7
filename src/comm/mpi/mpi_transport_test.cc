// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Run under mpirun: every process is a rank and runs every test.
#include "comm/mpi/mpi_transport.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport_conformance_test.h"

namespace anabranch {
namespace {

using std::chrono::milliseconds;

// MPI can be initialised once a process: one transport serves all tests.
MpiTransport* transport = nullptr;

TEST(MpiTransport, Conforms) { conformance::CheckConformance(*transport); }

// Calls come from a thread that did not initialise MPI: openxla/xla issue 16430.
TEST(MpiTransport, ConformsOnAnotherThread) {
  std::thread thread([] { conformance::CheckConformance(*transport); });
  thread.join();
}

// Last: afterwards the ranks are out of step.
TEST(MpiTransport, ZAStalledRankIsNamed) {
  if (transport->size() == 1) GTEST_SKIP() << "needs two ranks";
  const int stalled = transport->size() - 1;
  if (transport->rank() == stalled) {
    std::this_thread::sleep_for(milliseconds(6000));
    return;
  }
  const Status status = transport->AllGather({"prepare", 9, 4, 0}, nullptr, 0, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message().find("prepare (run 9, site 4): rank " + std::to_string(stalled) +
                                  " did not come within 5 s"),
            0u)
      << status.message();
  EXPECT_EQ(transport->AllGather({"prepare", 10, 4, 0}, nullptr, 0, nullptr).message(),
            status.message());
}

}  // namespace
}  // namespace anabranch

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::unique_ptr<anabranch::MpiTransport> transport;
  const anabranch::Status status =
      anabranch::MpiTransport::Create(std::chrono::milliseconds(5000), &transport);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  anabranch::transport = transport.get();
  const int result = RUN_ALL_TESTS();
  // The last test leaves the ranks out of step: MPI_Finalize would wait.
  std::fflush(nullptr);
  std::_Exit(result);
}
