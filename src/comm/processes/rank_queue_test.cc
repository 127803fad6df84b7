// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/processes/rank_queue.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace anabranch {
namespace {

// A rank whose rank 0 makes the calls `order`, one after the other.
class Scripted final : public Transport {
 public:
  explicit Scripted(std::vector<Call> order) : order_(std::move(order)) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  Status AllGather(const Call&, const void*, int64_t, void*) override { return Status::Ok(); }
  Status Share(const Call&, std::span<const Window>, Access, const Body&) override {
    return Status::Ok();
  }
  Status AwaitFirst(Call* call) override {
    *call = order_[next_++];
    return Status::Ok();
  }

 private:
  const std::vector<Call> order_;
  size_t next_ = 0;
};

// Collects what was done, in order.
class Log {
 public:
  RankQueue::Job Job(const Call& call) {
    return {call,
            [this](const Call& call, Transport&) {
              const std::lock_guard<std::mutex> lock(mutex_);
              made_.push_back(call.site);
              return Status::Ok();
            },
            [this](const Status& status) {
              EXPECT_TRUE(status.ok());
              const std::lock_guard<std::mutex> lock(mutex_);
              ++done_;
              changed_.notify_all();
            }};
  }
  std::vector<int64_t> Await(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_ == count; });
    return made_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> made_;
  int done_ = 0;
};

TEST(RankQueue, CallsAreMadeInTheOrderOfRankZero) {
  const Call a = {"a", 0, 1, 0}, b = {"b", 0, 2, 0}, c = {"a", 0, 3, 0};
  Scripted transport({c, a, b});
  Log log;
  RankQueue queue(&transport, std::chrono::seconds(60));
  for (const Call& call : {a, b, c}) queue.Post(log.Job(call));
  EXPECT_EQ(log.Await(3), (std::vector<int64_t>{3, 1, 2}));
}

TEST(RankQueue, EqualCallsKeepTheirOrder) {
  const Call a = {"a", 0, 1, 0};
  Scripted transport(std::vector<Call>(50, a));
  std::vector<int> made;
  Log log;
  RankQueue queue(&transport, std::chrono::seconds(60));
  for (int i = 0; i < 50; ++i) {
    RankQueue::Job job = log.Job(a);
    job.work = [&made, i](const Call&, Transport&) {
      made.push_back(i);
      return Status::Ok();
    };
    queue.Post(std::move(job));
  }
  log.Await(50);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(made[i], i);
}

// Rank 0 makes a call that this rank never reaches: what it waits with is made instead, and the
// transport then tells every rank of both.
TEST(RankQueue, ACallThatNeverComesIsAnsweredWithTheOneThatWaits) {
  Scripted transport({{"other", 0, 9, 0}});
  Log log;
  RankQueue queue(&transport, std::chrono::milliseconds(20));
  queue.Post(log.Job({"a", 0, 1, 0}));
  EXPECT_EQ(log.Await(1), (std::vector<int64_t>{1}));
}

}  // namespace
}  // namespace anabranch
