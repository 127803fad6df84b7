// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "comm/ragged_all_to_all/ragged_all_to_all.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/in_process.h"
#include "comm/simulated.h"

namespace anabranch {
namespace {

// Random pieces that do not overlap in any output; operand rows may be sent more than once.
template <typename T>
class World {
 public:
  World(int64_t ranks, int64_t per_rank, int64_t hidden, unsigned seed) {
    std::mt19937 generator(seed);
    const int64_t pieces = ranks * per_rank;
    for (auto* table : {&input_, &send_, &output_, &recv_}) {
      table->assign(ranks, std::vector<int32_t>(pieces));
    }
    std::vector<int64_t> end(ranks, 0);
    for (int64_t source = 0; source < ranks; ++source) {
      for (int64_t i = 0; i < pieces; ++i) {
        const int64_t target = i / per_rank;
        const int32_t rows = static_cast<int32_t>(generator() % kMaxRows);
        input_[source][i] = static_cast<int32_t>(generator() % (kOperandRows - rows));
        send_[source][i] = rows;
        output_[source][i] = static_cast<int32_t>(end[target] + generator() % 2);
        recv_[target][source * per_rank + i % per_rank] = rows;
        end[target] = output_[source][i] + rows;
      }
    }
    const int64_t output_rows = *std::max_element(end.begin(), end.end()) + 2;
    const auto fill = [&](std::vector<T>& values, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        values.push_back(FromFloat<T>(static_cast<float>(generator() % 64)));
      }
    };
    for (auto* buffers : {&operand, &result, &d_operand, &d_output}) buffers->resize(ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      fill(operand[rank], kOperandRows * hidden);
      fill(result[rank], output_rows * hidden);
      fill(d_operand[rank], kOperandRows * hidden);
      fill(d_output[rank], output_rows * hidden);
      const auto view = [&](const std::vector<int32_t>& v) {
        return ConstTensorView(v.data(), {pieces});
      };
      args.push_back({operand[rank].data(), kOperandRows, result[rank].data(), output_rows,
                      hidden * static_cast<int64_t>(sizeof(T)), view(input_[rank]),
                      view(send_[rank]), view(output_[rank]), view(recv_[rank])});
      grads.push_back({args.back(), kDTypeOf<T>, d_operand[rank].data(), d_output[rank].data()});
    }
  }
  template <typename Args>
  static std::vector<const Args*> Pointers(const std::vector<Args>& all) {
    std::vector<const Args*> pointers;
    for (const Args& one : all) pointers.push_back(&one);
    return pointers;
  }
  static bool Same(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) {
        return false;
      }
    }
    return true;
  }

  std::vector<std::vector<T>> operand, result, d_operand, d_output;
  std::vector<RaggedAllToAllArgs> args;
  std::vector<RaggedAllToAllGradArgs> grads;
  std::vector<std::vector<int32_t>> input_, send_, output_, recv_;

 private:
  static constexpr int64_t kMaxRows = 9;
  static constexpr int64_t kOperandRows = 20;
};

template <typename T>
void CheckAgainstOracle(int64_t ranks, int64_t per_rank, int64_t hidden, unsigned seed) {
  World<T> fast(ranks, per_rank, hidden, seed);
  World<T> oracle(ranks, per_rank, hidden, seed);
  ThreadExecutor executor(1 + seed % 3);
  ASSERT_TRUE(RaggedAllToAllGradTogether(World<T>::Pointers(fast.grads), executor).ok());
  RaggedAllToAllGradReference(World<T>::Pointers(oracle.grads));
  EXPECT_TRUE(World<T>::Same(fast.d_operand, oracle.d_operand));
  EXPECT_TRUE(World<T>::Same(fast.d_output, oracle.d_output));
  ASSERT_TRUE(RaggedAllToAllTogether(World<T>::Pointers(fast.args), executor).ok());
  RaggedAllToAllReference(World<T>::Pointers(oracle.args));
  EXPECT_TRUE(World<T>::Same(fast.result, oracle.result));
}

TEST(RaggedAllToAll, EqualsTheOracle) {
  unsigned seed = 0;
  for (const int64_t ranks : {1, 2, 3, 8}) {
    for (const int64_t per_rank : {1, 3}) {
      for (const int64_t hidden : {0, 1, 5, 64}) {
        CheckAgainstOracle<float>(ranks, per_rank, hidden, ++seed);
        CheckAgainstOracle<BF16>(ranks, per_rank, hidden, ++seed);
        if (testing::Test::HasFailure()) FAIL() << seed;
      }
    }
  }
}

// Runs part(transport, rank) on a thread for each rank.
void OnRanks(int64_t ranks, const std::function<void(Transport&, int64_t)>& part) {
  MeetingPlace place(std::chrono::milliseconds(60000));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      InProcessTransport transport(&place, 0, static_cast<int>(rank), static_cast<int>(ranks));
      part(transport, rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
void CheckEachRankAgainstOracle(int64_t ranks, int64_t per_rank, int64_t hidden, unsigned seed) {
  World<T> fast(ranks, per_rank, hidden, seed);
  World<T> oracle(ranks, per_rank, hidden, seed);
  OnRanks(ranks, [&](Transport& transport, int64_t rank) {
    ThreadExecutor executor(1 + seed % 2);
    const Status back = RaggedAllToAllGrad(fast.grads[rank], {"back", 1, 1, 0}, transport);
    EXPECT_TRUE(back.ok()) << back.message();
    const Status there = RaggedAllToAll(fast.args[rank], {"there", 1, 2, 0}, transport, executor);
    EXPECT_TRUE(there.ok()) << there.message();
  });
  RaggedAllToAllGradReference(World<T>::Pointers(oracle.grads));
  EXPECT_TRUE(World<T>::Same(fast.d_operand, oracle.d_operand));
  EXPECT_TRUE(World<T>::Same(fast.d_output, oracle.d_output));
  RaggedAllToAllReference(World<T>::Pointers(oracle.args));
  EXPECT_TRUE(World<T>::Same(fast.result, oracle.result));
}

TEST(RaggedAllToAll, EachRanksPartEqualsTheOracle) {
  unsigned seed = 100;
  for (const int64_t ranks : {1, 2, 3, 5}) {
    for (const int64_t per_rank : {1, 3}) {
      for (const int64_t hidden : {0, 1, 5, 64}) {
        CheckEachRankAgainstOracle<float>(ranks, per_rank, hidden, ++seed);
        CheckEachRankAgainstOracle<BF16>(ranks, per_rank, hidden, ++seed);
        if (testing::Test::HasFailure()) FAIL() << seed;
      }
    }
  }
}

// A rank shows no row that nobody else receives: what a transport without shared memory would send.
TEST(RaggedAllToAll, ShowsTheRowsThatOthersReceiveAlone) {
  const int32_t input[] = {4, 1, 2}, send[] = {6, 2, 3}, output[] = {0, 0, 0}, recv[] = {6, 0, 0};
  const auto view = [](const int32_t* v) { return ConstTensorView(v, {3}); };
  std::vector<float> operand(10 * 2), result(6 * 2);
  const RaggedAllToAllArgs args = {operand.data(), 10,         result.data(), 6,         8,
                                   view(input),    view(send), view(output),  view(recv)};
  SimulatedTransport transport(0, 3, [](int, int64_t, void*) {});
  SerialExecutor executor;
  ASSERT_TRUE(RaggedAllToAll(args, {"exchange", 1, 1, 0}, transport, executor).ok());
  // Rows 1 to 4 go to ranks 1 and 2: row 2 to both, row 4 to this rank as well.
  constexpr int64_t kSizesAndVectors = 3 * 8 + 4 * 3 * 4;
  EXPECT_EQ(transport.records()[0].window_bytes, kSizesAndVectors + 4 * 8);
}

TEST(RaggedAllToAll, FaultsOfOneRankAreNamedOnAll) {
  const auto message = [](World<float>& world) {
    std::vector<std::string> messages(world.args.size());
    OnRanks(2, [&](Transport& transport, int64_t rank) {
      SerialExecutor executor;
      messages[rank] =
          RaggedAllToAll(world.args[rank], {"there", 1, 2, 0}, transport, executor).message();
    });
    EXPECT_EQ(messages[0], messages[1]);
    return messages[0];
  };
  World<float> sizes(2, 1, 4, 1);
  sizes.send_[1][0] = 9;
  sizes.recv_[0][1] = 8;
  EXPECT_EQ(message(sizes),
            "rank 0: ragged_all_to_all: rank 1 sends 9 rows to rank 0, which expects 8");
  World<float> input(2, 1, 4, 1);
  input.send_[1][0] = input.recv_[0][1] = 5;
  input.input_[1][0] = 16;
  EXPECT_EQ(message(input),
            "rank 1: ragged_all_to_all: rank 1: piece 0 to rank 0 is rows [16, 21) of operand, "
            "which has 20");
  World<float> output(2, 1, 4, 1);
  output.send_[0][1] = output.recv_[1][0] = 5;
  output.output_[0][1] = -1;
  EXPECT_NE(message(output).find("rows [-1, 4) of the receiver's output"), std::string::npos);
  World<float> shape(2, 1, 4, 1);
  shape.args[1].recv_sizes = ConstTensorView(shape.recv_[1].data(), {1});
  EXPECT_NE(message(shape).find("rank 1: recv_sizes is i32[1]"), std::string::npos);
  World<float> width(2, 1, 4, 1);
  width.args[1].row_bytes = 8;
  EXPECT_NE(message(width).find("rank 1 has rows of 8 bytes"), std::string::npos);
}

// Megabytes: several units, streamed, at every alignment of 4 bytes.
TEST(RaggedAllToAll, EqualsTheOracleWhenStreaming) {
  for (const int64_t hidden : {60001, 60003}) CheckAgainstOracle<float>(3, 1, hidden, 5);
}

TEST(RaggedAllToAll, FaultsAreNamed) {
  SerialExecutor executor;
  const auto message = [&](World<float>& world) {
    return RaggedAllToAllTogether(World<float>::Pointers(world.args), executor).message();
  };
  World<float> sizes(2, 1, 4, 1);
  sizes.send_[1][0] = 9;
  sizes.recv_[0][1] = 8;
  EXPECT_EQ(message(sizes), "ragged_all_to_all: rank 1 sends 9 rows to rank 0, which expects 8");
  World<float> input(2, 1, 4, 1);
  input.send_[0][1] = input.recv_[1][0] = 5;
  input.input_[0][1] = 16;
  EXPECT_EQ(message(input),
            "ragged_all_to_all: rank 0: piece 1 to rank 1 is rows [16, 21) of operand, which has "
            "20");
  World<float> output(2, 1, 4, 1);
  output.send_[0][1] = output.recv_[1][0] = 5;
  output.output_[0][1] = -1;
  EXPECT_NE(message(output).find("rows [-1, 4) of the receiver's output"), std::string::npos);
  World<float> negative(2, 1, 4, 1);
  negative.send_[0][1] = negative.recv_[1][0] = -1;
  EXPECT_NE(message(negative).find("rank 0: piece 1"), std::string::npos);
  World<float> shape(2, 1, 4, 1);
  shape.args[1].recv_sizes = ConstTensorView(shape.recv_[1].data(), {1});
  EXPECT_NE(message(shape).find("rank 1: recv_sizes is i32[1]"), std::string::npos);
}

}  // namespace
}  // namespace anabranch
