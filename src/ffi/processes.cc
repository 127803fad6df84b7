// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ffi/processes.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "comm/processes/host_transport.h"

namespace anabranch::ffi {
namespace {

// Never destroyed: calls may be under way when the process ends.
struct Processes {
  std::unique_ptr<HostTransport> transport;
  std::unique_ptr<ThreadExecutor> executor;
  std::unique_ptr<RankQueue> queue;
};
std::atomic<Processes*> processes = nullptr;
std::atomic<int64_t> run = 0;

// A rank that has another call to offer says so well before the others give up.
constexpr int kPatienceShare = 2;

void CopyText(const std::string& text, char* to, int64_t size) {
  const int64_t count = std::min<int64_t>(size - 1, static_cast<int64_t>(text.size()));
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

}  // namespace

void PostToProcesses(const Rank& rank, RankQueue::Job job) {
  const Processes* const all = processes.load();
  if (all == nullptr) {
    job.done(InvalidArgument(job.call.operation,
                             ": this process is no rank; call start_processes() first"));
    return;
  }
  const HostTransport& transport = *all->transport;
  if (rank.rank != transport.rank() || rank.size != transport.size()) {
    job.done(InvalidArgument(job.call.operation, ": the mesh has this process as rank ", rank.rank,
                             " of ", rank.size, ", but it is process ", transport.rank(), " of ",
                             transport.size(),
                             "; the axis must hold every process once, in order"));
    return;
  }
  all->queue->Post(std::move(job));
}

Executor& ProcessExecutor() { return *processes.load()->executor; }

int64_t ProcessRun() { return run.load(); }

void SetProcessTimeout(std::chrono::milliseconds timeout) {
  if (Processes* const all = processes.load()) all->transport->set_timeout(timeout);
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
  const std::chrono::milliseconds timeout = anabranch::ffi::CommTimeout();
  const Status status = anabranch::HostTransport::Create(
      static_cast<int>(rank), static_cast<int>(size), timeout,
      [gather](const void* mine, int64_t bytes, void* everybody) {
        return gather(mine, bytes, everybody) == 0
                   ? Status::Ok()
                   : anabranch::InvalidArgument("the processes cannot reach each other");
      },
      &all->transport);
  if (!status.ok()) {
    anabranch::ffi::CopyText(status.message(), text, text_size);
    return 1;
  }
  all->executor = std::make_unique<anabranch::ThreadExecutor>(
      static_cast<int>(std::max<int64_t>(1, anabranch_num_processors() / size)));
  all->queue = std::make_unique<anabranch::RankQueue>(all->transport.get(),
                                                      timeout / anabranch::ffi::kPatienceShare);
  processes = all.release();
  return 0;
}

// From now on calls belong to this step of a training run.
ANABRANCH_EXPORT void anabranch_processes_run(int64_t step) { anabranch::ffi::run = step; }

// all[r * bytes ...] = what rank r passed as mine, in a call of the given name; waits for every
// rank. Returns 0, or 1 with the fault in `text`.
ANABRANCH_EXPORT int anabranch_processes_gather(const char* operation, const void* mine,
                                                int64_t bytes, void* all, char* text,
                                                int64_t text_size) {
  constexpr int64_t kNoSite = -1;  // sites of programs are not negative
  const anabranch::ffi::Processes* const group = processes.load();
  if (group == nullptr) {
    anabranch::ffi::CopyText("this process is no rank", text, text_size);
    return 1;
  }
  std::promise<Status> outcome;
  const anabranch::Call call = {operation, anabranch::ffi::ProcessRun(), kNoSite, bytes};
  group->queue->Post({call,
                      [=](const anabranch::Call& made, anabranch::Transport& transport) {
                        return transport.AllGather(made, mine, bytes, all);
                      },
                      [&outcome](const Status& status) { outcome.set_value(status); }});
  const Status status = outcome.get_future().get();
  if (status.ok()) return 0;
  anabranch::ffi::CopyText(status.message(), text, text_size);
  return 1;
}
