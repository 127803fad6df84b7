// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/meeting_place.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/spare_threads.h"

namespace anabranch {
namespace {

using Clock = std::chrono::steady_clock;
using Key = std::tuple<int64_t, int64_t, int64_t, int>;  // group, run, site, size

// Failed meetings that wait for ranks that may never come; the oldest are forgotten.
constexpr size_t kMaxFailedKeys = 256;

struct Meeting {
  std::vector<Arrival> arrivals;  // by rank; absent where `work` is empty
  int count = 0;
  Clock::time_point opened;
  Clock::time_point deadline;
};

struct Failure {
  Status status;
  int still_to_come;
};

// What has happened at one key.
struct Line {
  std::vector<int64_t> visits;  // by rank
  std::map<int64_t, Meeting> meetings;
  std::map<int64_t, Failure> failures;

  bool idle() const {
    if (!meetings.empty() || !failures.empty()) return false;
    for (const int64_t count : visits) {
      if (count != visits.front()) return false;
    }
    return true;
  }
};

std::string Describe(const Call& call) {
  return std::string(call.operation) + " (run " + std::to_string(call.run) + ", site " +
         std::to_string(call.site) + ")";
}

Status Absent(const Meeting& meeting, const Call& call, Clock::time_point now) {
  std::string absent;
  std::string present;
  for (size_t rank = 0; rank < meeting.arrivals.size(); ++rank) {
    std::string& list = meeting.arrivals[rank].work ? present : absent;
    list += (list.empty() ? "" : ", ") + std::to_string(rank);
  }
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - meeting.opened);
  return MakeStatus(StatusCode::kDeadlineExceeded, Describe(call), ": rank ", absent,
                    " did not come within ", static_cast<double>(waited.count()) / 1000,
                    " s; rank ", present, " waited");
}

}  // namespace

struct MeetingPlace::State {
  std::mutex mutex;
  std::map<Key, Line> lines;
  std::deque<Key> failed_keys;
  std::chrono::milliseconds timeout;
  std::condition_variable wake_watcher;
  Clock::time_point next_look = Clock::time_point::max();
  bool stopping = false;
  std::thread watcher;
  SpareThreads threads;

  // Adds the arrival to its meeting. Returns the meeting if that makes it complete; its status is
  // then the caller's to find. With *failure set, the meeting's arrivals are to be told.
  Meeting Join(Arrival arrival, Status* failure, bool* settled);
  // Takes a meeting out, remembering the failure for ranks still to come.
  Meeting Fail(const Key& key, Line& line, int64_t generation, const Status& status);
  void Watch();
  void Tell(Meeting meeting, const Status& status, int except);
  void EraseIfIdle(const Key& key) {
    const auto found = lines.find(key);
    if (found != lines.end() && found->second.idle()) lines.erase(found);
  }
};

Meeting MeetingPlace::State::Fail(const Key& key, Line& line, int64_t generation,
                                  const Status& status) {
  Meeting meeting = std::move(line.meetings[generation]);
  line.meetings.erase(generation);
  const int still_to_come = static_cast<int>(meeting.arrivals.size()) - meeting.count;
  if (still_to_come == 0) return meeting;
  line.failures[generation] = {status, still_to_come};
  failed_keys.push_back(key);
  if (failed_keys.size() > kMaxFailedKeys) {
    const auto oldest = lines.find(failed_keys.front());
    if (oldest != lines.end() && oldest->second.meetings.empty()) lines.erase(oldest);
    failed_keys.pop_front();
  }
  return meeting;
}

Meeting MeetingPlace::State::Join(Arrival arrival, Status* failure, bool* settled) {
  const Key key{arrival.group, arrival.call.run, arrival.call.site, arrival.size};
  const int rank = arrival.rank;
  const std::lock_guard<std::mutex> lock(mutex);
  Line& line = lines[key];
  if (line.visits.empty()) line.visits.resize(arrival.size);
  const int64_t generation = line.visits[rank]++;
  const auto failed = line.failures.find(generation);
  if (failed != line.failures.end()) {
    *failure = failed->second.status;
    *settled = true;
    if (--failed->second.still_to_come == 0) line.failures.erase(failed);
    EraseIfIdle(key);
    Meeting alone;
    alone.arrivals.push_back(std::move(arrival));
    return alone;
  }
  Meeting& meeting = line.meetings[generation];
  if (meeting.count == 0) {
    meeting.arrivals.resize(line.visits.size());
    meeting.opened = Clock::now();
    meeting.deadline = meeting.opened + timeout;
    if (meeting.deadline < next_look) {
      next_look = meeting.deadline;
      wake_watcher.notify_one();
    }
  }
  for (const Arrival& other : meeting.arrivals) {
    if (!other.work) continue;
    if (std::string_view(other.call.operation) != arrival.call.operation) {
      *failure = InvalidArgument("rank ", rank, " calls ", Describe(arrival.call), " where rank ",
                                 other.rank, " calls ", Describe(other.call));
    } else if (other.call.signature != arrival.call.signature) {
      *failure = InvalidArgument(Describe(arrival.call), ": rank ", rank, " and rank ", other.rank,
                                 " pass arguments of different sizes or types");
    }
    break;
  }
  meeting.arrivals[rank] = std::move(arrival);
  ++meeting.count;
  *settled = !failure->ok() || meeting.count == static_cast<int>(meeting.arrivals.size());
  if (!*settled) return Meeting();
  Meeting complete = Fail(key, line, generation, *failure);
  EraseIfIdle(key);
  return complete;
}

void MeetingPlace::State::Tell(Meeting meeting, const Status& status, int except) {
  for (Arrival& arrival : meeting.arrivals) {
    if (!arrival.work || arrival.rank == except) continue;
    threads.Run([done = std::move(arrival.done), status] { done(status); });
  }
}

void MeetingPlace::State::Watch() {
  std::unique_lock<std::mutex> lock(mutex);
  while (!stopping) {
    if (next_look == Clock::time_point::max()) {
      wake_watcher.wait(lock);
    } else {
      wake_watcher.wait_until(lock, next_look);
    }
    const Clock::time_point now = Clock::now();
    if (now < next_look) continue;
    next_look = Clock::time_point::max();
    std::vector<std::pair<Key, int64_t>> expired;
    for (auto& [key, line] : lines) {
      for (auto& [generation, meeting] : line.meetings) {
        if (meeting.deadline <= now) {
          expired.emplace_back(key, generation);
        } else {
          next_look = std::min(next_look, meeting.deadline);
        }
      }
    }
    for (const auto& [key, generation] : expired) {
      const auto found = lines.find(key);
      if (found == lines.end()) continue;
      const Meeting& meeting = found->second.meetings[generation];
      Call call;
      for (const Arrival& arrival : meeting.arrivals) {
        if (arrival.work) call = arrival.call;
      }
      const Status status = Absent(meeting, call, now);
      Tell(Fail(key, found->second, generation, status), status, -1);
    }
  }
}

MeetingPlace::MeetingPlace(std::chrono::milliseconds timeout) : state_(new State) {
  state_->timeout = timeout;
}

MeetingPlace::~MeetingPlace() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake_watcher.notify_all();
  if (state_->watcher.joinable()) state_->watcher.join();
}

void MeetingPlace::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->timeout = timeout;
}

void MeetingPlace::Arrive(Arrival arrival) {
  const int rank = arrival.rank;
  if (arrival.size < 1 || rank < 0 || rank >= arrival.size) {
    arrival.done(InvalidArgument(arrival.call.operation, ": rank ", rank, " of ", arrival.size,
                                 " ranks; must be in [0, size)"));
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->watcher.joinable()) {
      state_->watcher = std::thread([state = state_.get()] { state->Watch(); });
    }
  }
  Status status;
  bool settled = false;
  Meeting meeting = state_->Join(std::move(arrival), &status, &settled);
  if (!settled) return;
  Arrival* mine = nullptr;
  std::vector<const void*> posts;
  for (Arrival& other : meeting.arrivals) {
    posts.push_back(other.post);
    if (other.work && other.rank == rank) mine = &other;
  }
  if (status.ok()) status = mine->work(posts);
  const std::function<void(const Status&)> done = std::move(mine->done);
  state_->Tell(std::move(meeting), status, rank);
  done(status);
}

}  // namespace anabranch
