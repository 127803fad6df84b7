// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/in_process.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace anabranch {
namespace {

struct GatherPost {
  const void* mine;
  int64_t bytes;
  char* all;
};

// What a rank shows and is shown in the first meeting of Share.
struct SharePost {
  std::span<const Window> windows;
  Window* peers;
};

Status OfRank(size_t rank, const Status& status) {
  return Status(status.code(), "rank " + std::to_string(rank) + ": " + status.message());
}

}  // namespace

Status InProcessTransport::Meet(const Call& call, const void* post,
                                std::function<Status(std::span<const void* const>)> work) {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable settled;
    bool done = false;
    Status status;
  };
  const auto outcome = std::make_shared<Outcome>();
  place_->Arrive({.call = call,
                  .group = group_,
                  .rank = rank_,
                  .size = size_,
                  .post = post,
                  .work = std::move(work),
                  .done = [outcome](const Status& status) {
                    const std::lock_guard<std::mutex> lock(outcome->mutex);
                    outcome->status = status;
                    outcome->done = true;
                    outcome->settled.notify_one();
                  }});
  std::unique_lock<std::mutex> lock(outcome->mutex);
  outcome->settled.wait(lock, [&] { return outcome->done; });
  return outcome->status;
}

Status InProcessTransport::AllGather(const Call& call, const void* mine, int64_t bytes, void* all) {
  const GatherPost post = {mine, bytes, static_cast<char*>(all)};
  return Meet(call, &post, [&call](std::span<const void* const> posts) {
    const auto at = [&](size_t rank) { return static_cast<const GatherPost*>(posts[rank]); };
    for (size_t rank = 0; rank < posts.size(); ++rank) {
      if (at(rank)->bytes != at(0)->bytes) {
        return InvalidArgument(call.operation, ": rank ", rank, " gathers ", at(rank)->bytes,
                               " bytes, rank 0 ", at(0)->bytes);
      }
    }
    const int64_t size = at(0)->bytes;
    for (size_t to = 0; size > 0 && to < posts.size(); ++to) {
      for (size_t from = 0; from < posts.size(); ++from) {
        std::memcpy(at(to)->all + from * size, at(from)->mine, size);
      }
    }
    return Status::Ok();
  });
}

Status InProcessTransport::Share(const Call& call, std::span<const Window> windows,
                                 Access /*access*/, const Body& body) {
  std::vector<Window> peers(windows.size() * size_);
  const SharePost post = {windows, peers.data()};
  const Status met = Meet(call, &post, [&call](std::span<const void* const> posts) {
    const auto at = [&](size_t rank) { return static_cast<const SharePost*>(posts[rank]); };
    const size_t count = at(0)->windows.size();
    for (size_t rank = 0; rank < posts.size(); ++rank) {
      if (at(rank)->windows.size() != count) {
        return InvalidArgument(call.operation, ": rank ", rank, " shares ",
                               at(rank)->windows.size(), " windows, rank 0 ", count);
      }
    }
    for (size_t to = 0; to < posts.size(); ++to) {
      for (size_t from = 0; from < posts.size(); ++from) {
        std::copy_n(at(from)->windows.begin(), count, at(to)->peers + from * count);
      }
    }
    return Status::Ok();
  });
  ANABRANCH_RETURN_IF_ERROR(met);
  // Nobody leaves before all are done: peers still use this rank's windows.
  const Status mine = body(peers);
  return Meet(call, &mine, [](std::span<const void* const> posts) {
    for (size_t rank = 0; rank < posts.size(); ++rank) {
      const Status& status = *static_cast<const Status*>(posts[rank]);
      if (!status.ok()) return OfRank(rank, status);
    }
    return Status::Ok();
  });
}

}  // namespace anabranch
