// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Ranks are children of the test, made by fork.
#include "comm/processes/host_transport.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport_conformance_test.h"

namespace anabranch {
namespace {

using std::chrono::milliseconds;

// A gather among forked processes: rank 0 collects over socket pairs and sends all to everybody.
class Sockets {
 public:
  explicit Sockets(int size) : pairs_(size) {
    for (Pair& pair : pairs_) EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair.ends), 0);
  }
  ~Sockets() {
    for (const Pair& pair : pairs_) {
      close(pair.ends[0]);
      close(pair.ends[1]);
    }
  }
  Status Gather(int rank, const void* mine, int64_t bytes, void* all) {
    const int64_t size = static_cast<int64_t>(pairs_.size());
    if (rank != 0) {
      if (write(pairs_[rank].ends[1], mine, bytes) != bytes) return InvalidArgument("write");
      if (read(pairs_[rank].ends[1], all, bytes * size) != bytes * size) {
        return InvalidArgument("read");
      }
      return Status::Ok();
    }
    char* to = static_cast<char*>(all);
    std::memcpy(to, mine, bytes);
    for (int64_t other = 1; other < size; ++other) {
      if (read(pairs_[other].ends[0], to + other * bytes, bytes) != bytes) {
        return InvalidArgument("read");
      }
    }
    for (int64_t other = 1; other < size; ++other) {
      if (write(pairs_[other].ends[0], all, bytes * size) != bytes * size) {
        return InvalidArgument("write");
      }
    }
    return Status::Ok();
  }

 private:
  struct Pair {
    int ends[2];
  };
  std::vector<Pair> pairs_;
};

using Part = std::function<void(Transport&)>;

// Runs the part on every rank, each a process. Ranks of `doomed` may end as they like.
void OnRanks(int size, milliseconds timeout, const Part& part, int doomed = -1) {
  Sockets sockets(size);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    std::fflush(nullptr);  // or the children would write it again
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    std::unique_ptr<HostTransport> transport;
    const Status status = HostTransport::Create(
        rank, size, timeout,
        [&](const void* mine, int64_t bytes, void* all) {
          return sockets.Gather(rank, mine, bytes, all);
        },
        &transport);
    EXPECT_TRUE(status.ok()) << status.message();
    if (status.ok()) part(*transport);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_TRUE(rank == doomed || status == 0) << "rank " << rank << "; its faults are above";
  }
}

Status GatherNothing(Transport& transport, int64_t run) {
  return transport.AllGather({"prepare", run, 4, 0}, nullptr, 0, nullptr);
}

TEST(HostTransport, Conforms) {
  for (const int size : {1, 2, 3, 5}) {
    OnRanks(size, milliseconds(60000),
            [](Transport& transport) { conformance::CheckConformance(transport); });
  }
}

// As a combine of 64 waves shows them: rows and weights of each.
TEST(HostTransport, SharesManyWindows) {
  OnRanks(2, milliseconds(60000), [](Transport& transport) {
    constexpr size_t kCount = 128;
    std::vector<int64_t> values(kCount);
    std::vector<Window> windows;
    for (size_t w = 0; w < kCount; ++w) {
      values[w] = static_cast<int64_t>(1000 * transport.rank() + w);
      windows.push_back({&values[w], sizeof(int64_t)});
    }
    const Status status = transport.Share(
        {"combine", 1, 2, 0}, windows, Access::kPeersRead, [](std::span<const Window> peers) {
          for (size_t at = 0; at < 2 * kCount; ++at) {
            EXPECT_EQ(*static_cast<const int64_t*>(peers[at].data),
                      static_cast<int64_t>(1000 * (at / kCount) + at % kCount));
          }
          return Status::Ok();
        });
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

TEST(HostTransport, ARankThatIsKilledIsNamedAtOnce) {
  constexpr int kCulprit = 1;
  OnRanks(
      3, milliseconds(60000),
      [](Transport& transport) {
        ASSERT_TRUE(GatherNothing(transport, 8).ok());
        if (transport.rank() == kCulprit) raise(SIGKILL);
        const auto began = std::chrono::steady_clock::now();
        const Status status = GatherNothing(transport, 9);
        EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(5000));
        EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
        EXPECT_EQ(status.message().find("prepare (run 9, site 4): rank 1 (process "), 0u)
            << status.message();
        EXPECT_NE(status.message().find(") has ended; rank " + std::to_string(transport.rank()) +
                                        " waited; the last call of rank 1 was prepare (run 8, "
                                        "site 4)"),
                  std::string::npos)
            << status.message();
        EXPECT_EQ(GatherNothing(transport, 10).message(), status.message());
      },
      kCulprit);
}

// A rank that is late may itself wait for the dead one, among other ranks.
TEST(HostTransport, ARankThatIsKilledIsNamedWhileALateOneIsAwaited) {
  constexpr int kCulprit = 2;
  OnRanks(
      3, milliseconds(60000),
      [](Transport& transport) {
        if (transport.rank() == kCulprit) raise(SIGKILL);
        if (transport.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(2000));
          return;
        }
        const std::string message = GatherNothing(transport, 9).message();
        EXPECT_EQ(message.find("prepare (run 9, site 4): rank 2 (process "), 0u) << message;
      },
      kCulprit);
}

TEST(HostTransport, EveryRankThatStopsIsNamed) {
  OnRanks(3, milliseconds(200), [](Transport& transport) {
    if (transport.rank() > 0) {
      std::this_thread::sleep_for(milliseconds(600));
      return;
    }
    EXPECT_EQ(GatherNothing(transport, 9).message(),
              "prepare (run 9, site 4): rank 1 did not come within 0.2 s, nor did rank 2; rank 0 "
              "waited; rank 1 had made no call");
  });
}

TEST(HostTransport, ARankThatStopsIsNamedInTime) {
  OnRanks(2, milliseconds(200), [](Transport& transport) {
    if (transport.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(600));
      return;
    }
    const Status status = GatherNothing(transport, 9);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(),
              "prepare (run 9, site 4): rank 1 did not come within 0.2 s; rank 0 waited; rank 1 "
              "had made no call");
  });
}

TEST(HostTransport, ARankThatRecoversInTimeChangesNothing) {
  OnRanks(2, milliseconds(60000), [](Transport& transport) {
    if (transport.rank() == 1) std::this_thread::sleep_for(milliseconds(200));
    conformance::CheckAllGather(transport, 1);
  });
}

TEST(HostTransport, DifferentCallsAreNamedOnEveryRank) {
  OnRanks(2, milliseconds(60000), [](Transport& transport) {
    const Call call = {transport.rank() == 0 ? "dispatch" : "combine", 3, 7 + transport.rank(), 0};
    const Status status = transport.AllGather(call, nullptr, 0, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "rank 1 calls combine (run 3, site 8) where rank 0 calls dispatch (run 3, site 7)");
  });
}

TEST(HostTransport, RankZeroSaysWhichCallIsNext) {
  OnRanks(2, milliseconds(60000), [](Transport& transport) {
    for (int64_t run = 0; run < 50; ++run) {
      Call next = {"some", 0, 0, 0};
      if (transport.rank() == 0) next = {"prepare", run, run % 3, 0};
      ASSERT_TRUE(transport.AwaitFirst(&next).ok());
      ASSERT_EQ(next.run, run);
      ASSERT_EQ(next.site, run % 3);
      ASSERT_TRUE(transport.AllGather(next, nullptr, 0, nullptr).ok());
    }
  });
}

}  // namespace
}  // namespace anabranch
