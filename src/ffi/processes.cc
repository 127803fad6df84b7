// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/processes.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/processes/host_transport.h"

namespace anabranch::ffi {
namespace {

// Processes that meet, this one among them. Each group makes its calls in an order of its own.
struct Group {
  std::unique_ptr<HostTransport> transport;
  std::unique_ptr<RankQueue> queue;
};

// Never destroyed: calls may be under way when the process ends.
struct Processes {
  std::unique_ptr<ThreadExecutor> executor;
  std::mutex mutex;
  std::vector<std::unique_ptr<Group>> groups;  // never shrinks; the first is of all

  Group* Find(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex);
    const bool known = number >= 0 && number < static_cast<int64_t>(groups.size());
    return known ? groups[number].get() : nullptr;
  }
};
std::atomic<Processes*> processes = nullptr;
std::atomic<int64_t> run = 0;
std::atomic<int64_t> dispatch_delay_us = 0;

// A rank that has another call to offer says so well before the others give up.
constexpr int kPatienceShare = 2;

void CopyText(const std::string& text, char* to, int64_t size) {
  const int64_t count = std::min<int64_t>(size - 1, static_cast<int64_t>(text.size()));
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

// Posts a gather to the group's queue and waits for it.
Status GatherInGroup(Group& group, const char* operation, const void* mine, int64_t bytes,
                     void* everybody) {
  constexpr int64_t kNoSite = -1;  // sites of programs are not negative
  std::promise<Status> outcome;
  const Call call = {operation, run.load(), kNoSite, bytes};
  group.queue->Post({call,
                     [=](const Call& made, Transport& transport) {
                       return transport.AllGather(made, mine, bytes, everybody);
                     },
                     [&outcome](const Status& status) { outcome.set_value(status); }});
  return outcome.get_future().get();
}

std::unique_ptr<Group> MakeGroup(std::unique_ptr<HostTransport> transport) {
  auto group = std::make_unique<Group>();
  group->transport = std::move(transport);
  group->queue =
      std::make_unique<RankQueue>(group->transport.get(), CommTimeout() / kPatienceShare);
  return group;
}

// A part of the processes, which all of them make at the same time.
Status Split(Processes& all, const std::vector<int>& members) {
  Group& everybody = *all.Find(0);
  const auto gather = [&](const void* mine, int64_t bytes, void* to) {
    std::vector<char> theirs(bytes * everybody.transport->size());
    ANABRANCH_RETURN_IF_ERROR(GatherInGroup(everybody, "split", mine, bytes, theirs.data()));
    char* at = static_cast<char*>(to);
    for (const int member : members) at = std::copy_n(theirs.data() + member * bytes, bytes, at);
    return Status::Ok();
  };
  std::unique_ptr<HostTransport> transport;
  ANABRANCH_RETURN_IF_ERROR(
      HostTransport::CreatePart(*everybody.transport, members, CommTimeout(), gather, &transport));
  auto group = MakeGroup(std::move(transport));
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.groups.push_back(std::move(group));
  return Status::Ok();
}

}  // namespace

void PostToProcesses(const Rank& rank, RankQueue::Job job) {
  Processes* const all = processes.load();
  if (all == nullptr) {
    job.done(InvalidArgument(job.call.operation,
                             ": this process is no rank; call start_processes() first"));
    return;
  }
  const Group* const group = all->Find(rank.group);
  if (group == nullptr) {
    job.done(
        InvalidArgument(job.call.operation, ": there is no group ", rank.group, " of processes"));
    return;
  }
  const HostTransport& transport = *group->transport;
  if (rank.rank != transport.rank() || rank.size != transport.size()) {
    job.done(InvalidArgument(job.call.operation, ": the mesh has this process as rank ", rank.rank,
                             " of ", rank.size, ", but it is process ", transport.rank(), " of ",
                             transport.size(),
                             "; the mesh must hold every process once, in order"));
    return;
  }
  group->queue->Post(std::move(job));
}

Executor& ProcessExecutor() { return *processes.load()->executor; }

int64_t ProcessRun() { return run.load(); }

void DelayDispatch() {
  const int64_t delay = dispatch_delay_us.load();
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
}

void SetProcessTimeout(std::chrono::milliseconds timeout) {
  Processes* const all = processes.load();
  if (all == nullptr) return;
  const std::lock_guard<std::mutex> lock(all->mutex);
  for (const std::unique_ptr<Group>& group : all->groups) group->transport->set_timeout(timeout);
}

}  // namespace anabranch::ffi

#define ANABRANCH_EXPORT extern "C" __attribute__((visibility("default")))

using anabranch::Status;
using anabranch::ffi::processes;

ANABRANCH_EXPORT int64_t anabranch_num_processors();  // engine_api.cc

// Makes this process rank `rank` of `size`; gather(mine, bytes, all) gathers among the processes
// and returns 0. Collective. Returns 0, or 1 with the fault in `text`.
ANABRANCH_EXPORT int anabranch_processes_start(int64_t rank, int64_t size,
                                               int (*gather)(const void*, int64_t, void*),
                                               char* text, int64_t text_size) {
  auto all = std::make_unique<anabranch::ffi::Processes>();
  std::unique_ptr<anabranch::HostTransport> transport;
  const Status status = anabranch::HostTransport::Create(
      static_cast<int>(rank), static_cast<int>(size), anabranch::ffi::CommTimeout(),
      [gather](const void* mine, int64_t bytes, void* everybody) {
        return gather(mine, bytes, everybody) == 0
                   ? Status::Ok()
                   : anabranch::InvalidArgument("the processes cannot reach each other");
      },
      &transport);
  if (!status.ok()) {
    anabranch::ffi::CopyText(status.message(), text, text_size);
    return 1;
  }
  all->groups.push_back(anabranch::ffi::MakeGroup(std::move(transport)));
  all->executor = std::make_unique<anabranch::ThreadExecutor>(
      static_cast<int>(std::max<int64_t>(1, anabranch_num_processors() / size)));
  processes = all.release();
  return 0;
}

// Makes the next group of this process: with ranks members[0, count), in this order, itself among
// them. Every process must call it at the same time, for a group of its own of any kind. Returns 0,
// or 1 with the fault in `text`.
ANABRANCH_EXPORT int anabranch_processes_split(const int32_t* members, int64_t count, char* text,
                                               int64_t text_size) {
  anabranch::ffi::Processes* const all = processes.load();
  const Status status =
      all == nullptr ? anabranch::InvalidArgument("this process is no rank")
                     : anabranch::ffi::Split(*all, std::vector<int>(members, members + count));
  if (status.ok()) return 0;
  anabranch::ffi::CopyText(status.message(), text, text_size);
  return 1;
}

// From now on calls belong to this step of a training run.
ANABRANCH_EXPORT void anabranch_processes_run(int64_t step) { anabranch::ffi::run = step; }

// From now on every dispatch between processes takes this much longer, without using a processor: a
// slower network, for benchmarks.
ANABRANCH_EXPORT void anabranch_set_dispatch_delay(double seconds) {
  anabranch::ffi::dispatch_delay_us = static_cast<int64_t>(seconds * 1e6);
}

// all[r * bytes ...] = what rank r passed as mine, in a call of the given name; waits for every
// rank. Returns 0, or 1 with the fault in `text`.
ANABRANCH_EXPORT int anabranch_processes_gather(const char* operation, const void* mine,
                                                int64_t bytes, void* all, char* text,
                                                int64_t text_size) {
  anabranch::ffi::Processes* const all_processes = processes.load();
  if (all_processes == nullptr) {
    anabranch::ffi::CopyText("this process is no rank", text, text_size);
    return 1;
  }
  const Status status =
      anabranch::ffi::GatherInGroup(*all_processes->Find(0), operation, mine, bytes, all);
  if (status.ok()) return 0;
  anabranch::ffi::CopyText(status.message(), text, text_size);
  return 1;
}
