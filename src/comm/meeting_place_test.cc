// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/meeting_place.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

namespace anabranch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{60000};
constexpr milliseconds kShort{50};

// An arrival whose post is a number and whose work adds all posts to *sum.
struct Visitor {
  Visitor(MeetingPlace& place, Call call, int rank, int size, int64_t number, int64_t group = 0)
      : post(number) {
    place.Arrive({.call = call,
                  .group = group,
                  .rank = rank,
                  .size = size,
                  .post = &post,
                  .work =
                      [](std::span<const void* const> posts) {
                        int64_t sum = 0;
                        for (const void* p : posts) sum += *static_cast<const int64_t*>(p);
                        return sum < 0 ? InvalidArgument("sum is ", sum) : Status::Ok();
                      },
                  .done = [this](const Status& status) { promise.set_value(status); }});
  }
  Status Wait() { return promise.get_future().get(); }

  int64_t post;
  std::promise<Status> promise;
};

TEST(MeetingPlace, EveryRankGetsTheStatusOfTheWork) {
  MeetingPlace place(kLong);
  for (const int64_t number : {1, -1}) {
    Visitor a(place, {"add", 1, 1, 0}, 0, 2, number);
    Visitor b(place, {"add", 1, 1, 0}, 1, 2, number);
    EXPECT_EQ(a.Wait().message(), b.Wait().message());
  }
}

TEST(MeetingPlace, DifferentRunsSitesAndGroupsDoNotMeet) {
  MeetingPlace place(kLong);
  std::vector<std::unique_ptr<Visitor>> visitors;
  for (int rank = 0; rank < 2; ++rank) {
    for (int64_t run : {1, 2}) {
      for (int64_t site : {1, 2}) {
        for (int64_t group : {0, 1}) {
          // Only two equal numbers of opposite sign would add up to no error with a wrong partner.
          const int64_t number = (rank == 0 ? 1 : -1) * (100 * run + 10 * site + group);
          visitors.push_back(
              std::make_unique<Visitor>(place, Call{"add", run, site, 0}, rank, 2, number, group));
        }
      }
    }
  }
  for (auto& visitor : visitors) EXPECT_TRUE(visitor->Wait().ok());
}

TEST(MeetingPlace, ARankThatIsAheadDoesNotMeetItself) {
  MeetingPlace place(kLong);
  Visitor a1(place, {"add", 1, 1, 0}, 0, 2, 5);
  Visitor a2(place, {"add", 1, 1, 0}, 0, 2, -7);
  Visitor b1(place, {"add", 1, 1, 0}, 1, 2, -5);
  Visitor b2(place, {"add", 1, 1, 0}, 1, 2, 6);
  EXPECT_TRUE(a1.Wait().ok());
  EXPECT_TRUE(b1.Wait().ok());
  EXPECT_FALSE(a2.Wait().ok());
  EXPECT_FALSE(b2.Wait().ok());
}

TEST(MeetingPlace, DifferentOperationsAreAnErrorThatNamesBoth) {
  MeetingPlace place(kLong);
  Visitor a(place, {"dispatch", 1, 1, 0}, 0, 3, 0);
  Visitor b(place, {"combine", 1, 1, 0}, 2, 3, 0);
  for (Visitor* visitor : {&a, &b}) {
    const Status status = visitor->Wait();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "rank 2 calls combine (run 1, site 1) where rank 0 calls dispatch (run 1, site 1)");
  }
  Visitor late(place, {"dispatch", 1, 1, 0}, 1, 3, 0);
  EXPECT_EQ(late.Wait().code(), StatusCode::kInvalidArgument);
}

TEST(MeetingPlace, DifferentSignaturesAreAnError) {
  MeetingPlace place(kLong);
  Visitor a(place, {"dispatch", 1, 1, 7}, 0, 2, 0);
  Visitor b(place, {"dispatch", 1, 1, 8}, 1, 2, 0);
  EXPECT_EQ(a.Wait().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(b.Wait().code(), StatusCode::kInvalidArgument);
}

// DeepEP issue 137, jax issue 38503: a time-out that does not say who is missing.
TEST(MeetingPlace, AnAbsentRankIsNamedAndThePlaceStaysUsable) {
  MeetingPlace place(kShort);
  Visitor a(place, {"dispatch", 3, 4, 0}, 0, 4, 0);
  Visitor c(place, {"dispatch", 3, 4, 0}, 2, 4, 0);
  const Status status = a.Wait();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("dispatch (run 3, site 4): rank 1, 3 did not come within"),
            std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("rank 0, 2 waited"), std::string::npos);
  EXPECT_EQ(c.Wait().message(), status.message());
  Visitor late(place, {"dispatch", 3, 4, 0}, 1, 4, 0);
  EXPECT_EQ(late.Wait().message(), status.message());
  place.set_timeout(kLong);
  Visitor x(place, {"dispatch", 4, 4, 0}, 0, 2, 0);
  Visitor y(place, {"dispatch", 4, 4, 0}, 1, 2, 0);
  EXPECT_TRUE(x.Wait().ok());
  EXPECT_TRUE(y.Wait().ok());
}

TEST(MeetingPlace, AStalledRankThatComesInTimeChangesNothing) {
  MeetingPlace place(kLong);
  Visitor a(place, {"dispatch", 1, 1, 0}, 0, 2, 0);
  std::this_thread::sleep_for(kShort);
  Visitor b(place, {"dispatch", 1, 1, 0}, 1, 2, 0);
  EXPECT_TRUE(a.Wait().ok());
  EXPECT_TRUE(b.Wait().ok());
}

// done may block on another rank's done, as an XLA collective in the rest of its program does.
TEST(MeetingPlace, EveryContinuationMayBlockOnTheOthers) {
  constexpr int kRanks = 8;
  MeetingPlace place(kLong);
  std::atomic<int> arrived{0};
  std::promise<void> everybody;
  std::shared_future<void> all_here = everybody.get_future().share();
  std::vector<std::future<void>> finished;
  std::vector<std::promise<void>> promises(kRanks);
  const int64_t post = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    finished.push_back(promises[rank].get_future());
    place.Arrive({.call = {"add", 1, 1, 0},
                  .rank = rank,
                  .size = kRanks,
                  .post = &post,
                  .work = [](std::span<const void* const>) { return Status::Ok(); },
                  .done =
                      [&, rank](const Status&) {
                        if (arrived.fetch_add(1) + 1 == kRanks) everybody.set_value();
                        all_here.wait();
                        promises[rank].set_value();
                      }});
  }
  for (auto& one : finished) one.wait();
}

TEST(MeetingPlace, ManyRanksInTheirOwnThreads) {
  constexpr int kRanks = 8;
  constexpr int kCalls = 300;
  MeetingPlace place(kLong);
  std::vector<std::thread> threads;
  std::atomic<int> faults{0};
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int64_t i = 0; i < kCalls; ++i) {
        Visitor visitor(place, {"add", i % 3, i % 2, 0}, rank, kRanks, rank == 0 ? -i : i);
        if (!visitor.Wait().ok()) ++faults;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(faults, 0);
}

}  // namespace
}  // namespace anabranch
