// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Uses the installed package as a stranger would; exit 0 means that it works.
#include <anabranch/executor.h>
#include <anabranch/status.h>

#include <atomic>
#include <cstdint>

#include "base/status.h"

int main() {
  anabranch::ThreadExecutor executor(2);
  std::atomic<int64_t> sum = 0;
  executor.ParallelFor(10, [&](int64_t unit, int /*worker*/) { sum += unit; });
  const anabranch::Status status = anabranch::InvalidArgument("sum=", sum.load());
  return sum == 45 && !status.ok() && kConsumerStatus == 3 ? 0 : 1;
}
