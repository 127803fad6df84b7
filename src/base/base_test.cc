// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "base/context.h"
#include "base/cpu_features.h"
#include "base/dtype.h"
#include "base/executor.h"
#include "base/float_mode.h"
#include "base/philox.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace anabranch {
namespace {

TEST(StatusTest, MessageIsBuiltFromParts) {
  const Status status = InvalidArgument("op: x=", 3, " must be > ", 4);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "op: x=3 must be > 4");
  EXPECT_TRUE(Status::Ok().ok());
}

// Every bf16 is a fixed point of the rounding; halfway cases go to the even neighbour.
TEST(BF16Test, AllValuesRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const BF16 value{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBF16(wide))));
    } else {
      EXPECT_EQ(ToBF16(wide).bits, bits);
    }
  }
}

TEST(BF16Test, TiesGoToEvenAndOverflowToInfinity) {
  EXPECT_EQ(ToBF16(1.0f + 1.0f / 256).bits, 0x3f80);  // halfway, lower is even
  EXPECT_EQ(ToBF16(1.0f + 3.0f / 256).bits, 0x3f82);  // halfway, upper is even
  EXPECT_EQ(ToBF16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(ToBF16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(ToBF16(-0.0f).bits, 0x8000);
}

TEST(TensorViewTest, PrintsTypeAndShape) {
  const float data[6] = {};
  const ConstTensorView view(data, {2, 3});
  EXPECT_EQ(view.ToString(), "f32[2,3]");
  EXPECT_EQ(view.num_elements(), 6);
  EXPECT_TRUE(view.HasShape({2, 3}));
  EXPECT_FALSE(view.HasShape({3, 2}));
  EXPECT_FALSE(ConstTensorView().has_value());
}

TEST(ExecutorTest, EveryUnitRunsOnceForAnyThreadCount) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadExecutor executor(threads);
    EXPECT_EQ(executor.num_workers(), threads);
    for (int64_t units : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> runs(units);
      std::vector<std::atomic<int>> busy(threads);
      std::atomic<bool> overlap{false};
      executor.ParallelFor(units, [&](int64_t unit, int worker) {
        if (busy[worker].fetch_add(1) != 0) overlap = true;
        ++runs[unit];
        busy[worker].fetch_sub(1);
      });
      for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
      EXPECT_FALSE(overlap.load());
    }
  }
}

TEST(ExecutorTest, ConcurrentLoopsFinish) {
  ThreadExecutor executor(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 200; ++loop) {
        executor.ParallelFor(16, [&](int64_t unit, int) { sum += unit; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 200 * 120);
}

// volatile keeps the compiler from folding the division.
TEST(FloatModeTest, SubnormalsLiveInsideAndTheCallersModeReturns) {
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  volatile float tiny = 1e-38f;
  EXPECT_EQ(tiny / 100, 0.0f);
  {
    const ScopedIeeeMode mode;
    EXPECT_GT(tiny / 100, 0.0f);
  }
  EXPECT_EQ(tiny / 100, 0.0f);
  _mm_setcsr(before);
#else
  GTEST_SKIP() << "x86 only";
#endif
}

// Known answers of Random123's kat_vectors for philox4x32 10.
TEST(PhiloxTest, KnownAnswers) {
  const std::array<uint32_t, 4> zeros = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), zeros);
  const uint32_t ones = 0xffffffffu;
  const std::array<uint32_t, 4> all = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT_EQ(Philox({ones, ones, ones, ones}, {ones, ones}), all);
  const std::array<uint32_t, 4> pi = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}), pi);
}

TEST(CpuFeaturesTest, ForcedIsaIsObeyedWhenSupported) {
  const char* before = std::getenv("ANABRANCH_FORCE_ISA");
  const std::string saved = before == nullptr ? "" : before;
  for (int i = 0; i < kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    setenv("ANABRANCH_FORCE_ISA", Name(isa), 1);
    std::string error;
    const Isa selected = SelectIsa(&error);
    EXPECT_EQ(selected == isa, IsSupported(isa));
    EXPECT_EQ(error.empty(), IsSupported(isa)) << error;
  }
  setenv("ANABRANCH_FORCE_ISA", "sse9", 1);
  std::string error;
  SelectIsa(&error);
  EXPECT_NE(error.find("unknown"), std::string::npos);
  setenv("ANABRANCH_FORCE_ISA", saved.c_str(), 1);
}

TEST(ScratchArenaTest, CountsAndAligns) {
  ScratchArena counter(nullptr);
  EXPECT_EQ(counter.Take<float>(3), nullptr);
  EXPECT_EQ(counter.Take<BF16>(33), nullptr);
  EXPECT_EQ(counter.used_bytes(), 64 + 128);
}

}  // namespace
}  // namespace anabranch
