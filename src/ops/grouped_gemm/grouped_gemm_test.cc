// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/grouped_gemm/grouped_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/executor.h"

namespace anabranch {
namespace {

// A matrix or a stack of them, 64-byte aligned, of either float type.
class Tensor {
 public:
  Tensor(DType dtype, std::initializer_list<int64_t> shape) : dtype_(dtype), shape_(shape) {
    size_ = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    const int64_t bytes = RoundUp(std::max<int64_t>(size_ * SizeOf(dtype), 1), 64);
    data_.reset(std::aligned_alloc(64, bytes));
    std::memset(data_.get(), 0xff, bytes);  // NaN: what is not written shows
  }

  Tensor& Randomize(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < size_; ++i) Set(i, normal(random));
    return *this;
  }
  void Set(int64_t index, float value) {
    if (dtype_ == DType::kBF16) {
      static_cast<BF16*>(data_.get())[index] = ToBF16(value);
    } else {
      static_cast<float*>(data_.get())[index] = value;
    }
  }
  float operator[](int64_t index) const {
    return dtype_ == DType::kBF16 ? ToFloat(static_cast<const BF16*>(data_.get())[index])
                                  : static_cast<const float*>(data_.get())[index];
  }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * SizeOf(dtype_); }
  DType dtype() const { return dtype_; }
  const void* data() const { return data_.get(); }
  TensorView view() {
    return shape_.size() == 2 ? TensorView(data_.get(), dtype_, {shape_[0], shape_[1]})
                              : TensorView(data_.get(), dtype_, {shape_[0], shape_[1], shape_[2]});
  }

 private:
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  DType dtype_;
  std::vector<int64_t> shape_;
  int64_t size_;
  std::unique_ptr<void, Free> data_;
};

struct Problem {
  int64_t num_rows, k, n;
  std::vector<int32_t> group_sizes;

  int64_t num_groups() const { return static_cast<int64_t>(group_sizes.size()); }
  ConstTensorView sizes() const { return {group_sizes.data(), {num_groups()}}; }
  std::vector<int64_t> GroupOfRows() const {
    std::vector<int64_t> groups;
    for (int64_t g = 0; g < num_groups(); ++g) groups.insert(groups.end(), group_sizes[g], g);
    groups.resize(num_rows, -1);
    return groups;
  }
};

struct Types {
  DType rows, weight, result;
};
constexpr DType kF = DType::kF32;
constexpr DType kB = DType::kBF16;
// Every mixture of the contract.
const Types kTypes[] = {{kF, kF, kF}, {kF, kF, kB}, {kB, kB, kF},
                        {kB, kB, kB}, {kB, kF, kF}, {kB, kF, kB}};

// Who computes: the oracle, or the kernels on an executor with scratch as the contract asks for.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual Status Run(const GroupedGemmArgs& args) const = 0;
  virtual Status Run(const GroupedGemmDgradArgs& args) const = 0;
  virtual Status Run(const GroupedGemmWgradArgs& args) const = 0;
};

class OracleRunner final : public Runner {
 public:
  Status Run(const GroupedGemmArgs& args) const override { return GroupedGemmReference(args); }
  Status Run(const GroupedGemmDgradArgs& args) const override {
    return GroupedGemmDgradReference(args);
  }
  Status Run(const GroupedGemmWgradArgs& args) const override {
    return GroupedGemmWgradReference(args);
  }
};

class KernelRunner final : public Runner {
 public:
  explicit KernelRunner(int num_threads) : executor_(num_threads) {}
  Status Run(const GroupedGemmArgs& args) const override {
    return Call(GroupedGemm, GroupedGemmScratchBytes, args);
  }
  Status Run(const GroupedGemmDgradArgs& args) const override {
    return Call(GroupedGemmDgrad, GroupedGemmDgradScratchBytes, args);
  }
  Status Run(const GroupedGemmWgradArgs& args) const override {
    return Call(GroupedGemmWgrad, GroupedGemmWgradScratchBytes, args);
  }

 private:
  template <typename Args>
  Status Call(Status (*op)(const Args&, const Context&), int64_t (*scratch_bytes)(const Args&, int),
              const Args& args) const {
    Tensor scratch(DType::kF32, {CeilDiv(scratch_bytes(args, executor_.num_workers()), 4)});
    return op(args, Context{&executor_, const_cast<void*>(scratch.data()), scratch.bytes()});
  }
  mutable ThreadExecutor executor_;
};

// One f64 sum with the magnitude of its terms, from which the bound on an f32 sum follows.
struct ExactSum {
  double sum = 0;
  double magnitude = 0;
  int64_t terms = 0;

  void Add(double a, double b) {
    sum += a * b;
    magnitude += std::abs(a * b);
    ++terms;
  }
  double Bound(DType result) const {
    const double unit = std::ldexp(1.0, -24);
    const double accumulation = (terms + 2) * unit * magnitude;
    return accumulation +
           (result == kB ? std::ldexp(1.0, -8) * (std::abs(sum) + accumulation) : 0.0);
  }
};

double Rounded(const Tensor& tensor, int64_t index, DType multiplicand) {
  return multiplicand == kB ? ToFloat(ToBF16(tensor[index])) : tensor[index];
}

void ExpectNear(float actual, const ExactSum& exact, DType result, const std::string& where) {
  if (exact.terms == 0) {
    ASSERT_TRUE(actual == 0 && !std::signbit(actual)) << where << ": " << actual;
  } else {
    ASSERT_LE(std::abs(actual - exact.sum), exact.Bound(result)) << where;
  }
}

void CheckForward(const Runner& runner, const Problem& problem, Types types) {
  Tensor x(types.rows, {problem.num_rows, problem.k});
  Tensor w(types.weight, {problem.num_groups(), problem.k, problem.n});
  Tensor y(types.result, {problem.num_rows, problem.n});
  const Status status = runner.Run(
      GroupedGemmArgs{x.Randomize(1).view(), w.Randomize(2).view(), problem.sizes(), y.view()});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<int64_t> group = problem.GroupOfRows();
  for (int64_t r = 0; r < problem.num_rows; ++r) {
    for (int64_t j = 0; j < problem.n; ++j) {
      ExactSum exact;
      for (int64_t i = 0; group[r] >= 0 && i < problem.k; ++i) {
        exact.Add(x[r * problem.k + i],
                  Rounded(w, (group[r] * problem.k + i) * problem.n + j, types.rows));
      }
      ExpectNear(y[r * problem.n + j], exact, types.result, "y row " + std::to_string(r));
    }
  }
}

void CheckDgrad(const Runner& runner, const Problem& problem, Types types) {
  Tensor dy(types.rows, {problem.num_rows, problem.n});
  Tensor w(types.weight, {problem.num_groups(), problem.k, problem.n});
  Tensor dx(types.result, {problem.num_rows, problem.k});
  const Status status = runner.Run(GroupedGemmDgradArgs{
      dy.Randomize(3).view(), w.Randomize(2).view(), problem.sizes(), dx.view()});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<int64_t> group = problem.GroupOfRows();
  for (int64_t r = 0; r < problem.num_rows; ++r) {
    for (int64_t i = 0; i < problem.k; ++i) {
      ExactSum exact;
      for (int64_t j = 0; group[r] >= 0 && j < problem.n; ++j) {
        exact.Add(dy[r * problem.n + j],
                  Rounded(w, (group[r] * problem.k + i) * problem.n + j, types.rows));
      }
      ExpectNear(dx[r * problem.k + i], exact, types.result, "dx row " + std::to_string(r));
    }
  }
}

void CheckWgrad(const Runner& runner, const Problem& problem, Types types) {
  Tensor x(types.rows, {problem.num_rows, problem.k});
  Tensor dy(types.rows, {problem.num_rows, problem.n});
  Tensor dw(types.result, {problem.num_groups(), problem.k, problem.n});
  const Status status = runner.Run(GroupedGemmWgradArgs{
      x.Randomize(1).view(), dy.Randomize(3).view(), problem.sizes(), dw.view()});
  ASSERT_TRUE(status.ok()) << status.message();
  int64_t begin = 0;
  for (int64_t g = 0; g < problem.num_groups(); ++g) {
    const int64_t end = begin + problem.group_sizes[g];
    for (int64_t i = 0; i < problem.k; ++i) {
      for (int64_t j = 0; j < problem.n; ++j) {
        ExactSum exact;
        for (int64_t r = begin; r < end; ++r)
          exact.Add(x[r * problem.k + i], dy[r * problem.n + j]);
        ExpectNear(dw[(g * problem.k + i) * problem.n + j], exact, types.result,
                   "dw group " + std::to_string(g));
      }
    }
    begin = end;
  }
}

void CheckAll(const Runner& runner, const Problem& problem) {
  for (const Types& types : kTypes) {
    SCOPED_TRACE(testing::Message()
                 << "M " << problem.num_rows << " K " << problem.k << " N " << problem.n << " E "
                 << problem.num_groups() << " types " << Name(types.rows) << " "
                 << Name(types.weight) << " " << Name(types.result));
    CheckForward(runner, problem, types);
    CheckDgrad(runner, problem, types);
    if (types.rows == types.weight || types.result == kF) CheckWgrad(runner, problem, types);
  }
}

// Odd sizes everywhere, one-row groups, a tail, panels that end inside a vector.
const Problem kProblems[] = {
    {1, 1, 1, {1}},           {9, 7, 5, {2, 0, 4, 1}},      {40, 33, 43, {13, 1, 0, 19, 3}},
    {70, 64, 96, {64, 0, 6}}, {23, 130, 65, {0, 0, 23, 0}},
};

TEST(GroupedGemmOracleTest, MatchesSumsInDouble) {
  for (const Problem& problem : kProblems) CheckAll(OracleRunner(), problem);
}

TEST(GroupedGemmOracleTest, KnownProduct) {
  const float x[] = {1, 2, 3, 4, 5, 6};        // 3 rows of 2; the last belongs to no group
  const float w[] = {1, 10, 100, -1, -10, 0};  // two 2 x 1 matrices and one more that is unused
  const int32_t sizes[] = {1, 0, 1};
  float y[3];
  ASSERT_TRUE(GroupedGemmReference({{x, {3, 2}}, {w, {3, 2, 1}}, {sizes, {3}}, {y, {3, 1}}}).ok());
  EXPECT_EQ(y[0], 1 * 1 + 2 * 10);
  EXPECT_EQ(y[1], 3 * -10 + 4 * 0);
  EXPECT_EQ(y[2], 0);
}

TEST(GroupedGemmTest, MatchesSumsInDouble) {
  const KernelRunner runner(2);
  for (const Problem& problem : kProblems) CheckAll(runner, problem);
}

TEST(GroupedGemmTest, LongSumsAndManyPanels) {
  const KernelRunner runner(3);
  // 2,500 rows are two chunks of f32 and of bf16; 600 columns of K are two blocks.
  CheckAll(runner, {2500, 9, 20, {2300, 0, 190}});
  CheckAll(runner, {31, 600, 130, {7, 24}});
  CheckWgrad(runner, {4500, 6, 70, {4400, 100}}, {kB, kB, kF});
  CheckWgrad(runner, {4500, 6, 70, {4400, 100}}, {kB, kB, kB});
  CheckWgrad(runner, {4500, 6, 64, {4400, 100}}, {kB, kB, kF});
}

TEST(GroupedGemmTest, EveryPatternOfEmptyGroups) {
  const KernelRunner runner(2);
  for (int pattern = 0; pattern < 256; ++pattern) {
    Problem problem{0, 6, 18, std::vector<int32_t>(8)};
    for (int g = 0; g < 8; ++g)
      problem.group_sizes[g] = (pattern >> g & 1) * (1 + (g * 5 + pattern) % 9);
    for (int32_t size : problem.group_sizes) problem.num_rows += size;
    problem.num_rows += pattern % 3;  // rows that belong to no group
    const Types types = kTypes[pattern % 4];
    SCOPED_TRACE(pattern);
    CheckForward(runner, problem, types);
    CheckDgrad(runner, problem, types);
    CheckWgrad(runner, problem, types);
  }
}

TEST(GroupedGemmTest, EmptySizes) {
  const KernelRunner runner(2);
  for (const Problem& problem :
       {Problem{0, 5, 7, {0, 0}}, Problem{16, 5, 7, {0, 0, 0}}, Problem{6, 0, 7, {2, 4}},
        Problem{6, 5, 0, {2, 4}}, Problem{3, 5, 7, {}}}) {
    CheckAll(runner, problem);
  }
}

// The bits of all three products are those of one thread.
TEST(GroupedGemmTest, BitsDoNotDependOnThreads) {
  const Problem problem{2711, 200, 130, {2000, 0, 611, 1, 90}};
  for (const Types& types : kTypes) {
    Tensor x(types.rows, {problem.num_rows, problem.k});
    Tensor dy(types.rows, {problem.num_rows, problem.n});
    Tensor w(types.weight, {problem.num_groups(), problem.k, problem.n});
    x.Randomize(1), dy.Randomize(2), w.Randomize(3);
    std::vector<std::byte> first[3];
    for (int threads : {1, 2, 3, 7}) {
      const KernelRunner runner(threads);
      Tensor y(types.result, {problem.num_rows, problem.n});
      Tensor dx(types.result, {problem.num_rows, problem.k});
      Tensor dw(types.result, {problem.num_groups(), problem.k, problem.n});
      const ConstTensorView sizes = problem.sizes();
      ASSERT_TRUE(runner.Run(GroupedGemmArgs{x.view(), w.view(), sizes, y.view()}).ok());
      ASSERT_TRUE(runner.Run(GroupedGemmDgradArgs{dy.view(), w.view(), sizes, dx.view()}).ok());
      ASSERT_TRUE(runner.Run(GroupedGemmWgradArgs{x.view(), dy.view(), sizes, dw.view()}).ok());
      int which = 0;
      for (const Tensor* result : {&y, &dx, &dw}) {
        const std::byte* bytes = static_cast<const std::byte*>(result->data());
        std::vector<std::byte>& one_thread = first[which++];
        if (threads == 1) one_thread.assign(bytes, bytes + result->bytes());
        EXPECT_EQ(std::memcmp(bytes, one_thread.data(), result->bytes()), 0) << threads;
      }
    }
  }
}

// With one leaf the scaled gradient is the plain one times the scale, rounded.
TEST(GroupedGemmTest, WgradIsMultipliedByTheScaleOfItsGroup) {
  const KernelRunner runner(2);
  Tensor x(kB, {90, 70}), dy(kB, {90, 100}), plain(kF, {3, 70, 100}), scaled(kF, {3, 70, 100});
  x.Randomize(1), dy.Randomize(2);
  const int32_t sizes[] = {37, 0, 50};
  const float scale[] = {0.7f, 3, 1.1f};
  GroupedGemmWgradArgs args = {x.view(), dy.view(), {sizes, {3}}, plain.view()};
  ASSERT_TRUE(runner.Run(args).ok());
  args.dw = scaled.view();
  args.scale = ConstTensorView(scale, {3});
  ASSERT_TRUE(runner.Run(args).ok());
  for (int64_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(scaled[i], plain[i] * scale[i / 7000]) << i;
  }
  args.scale = ConstTensorView(scale, {2});
  EXPECT_EQ(runner.Run(args).message(), "grouped_gemm_wgrad: scale is f32[2]; must be f32 [3]");
}

// A row's result is the same bits whatever stands beside it, and NaN stays in its row: with odd
// lengths a last word reaches into the next row, and the tail may hold anything.
TEST(GroupedGemmTest, RowsAreIndependent) {
  const KernelRunner runner(2);
  for (const Types& types : kTypes) {
    Tensor x(types.rows, {12, 7});
    Tensor w(types.weight, {2, 7, 5});
    Tensor y(types.result, {12, 5});
    x.Randomize(1), w.Randomize(2);
    const int32_t sizes[] = {6, 4};
    const auto run = [&](Tensor* out) {
      return runner.Run(GroupedGemmArgs{x.view(), w.view(), {sizes, {2}}, out->view()});
    };
    ASSERT_TRUE(run(&y).ok());
    for (int64_t i = 0; i < 7; ++i) x.Set(3 * 7 + i, NAN), x.Set(11 * 7 + i, NAN);
    Tensor with_nan(types.result, {12, 5});
    ASSERT_TRUE(run(&with_nan).ok());
    for (int64_t i = 0; i < y.size(); ++i) {
      if (i / 5 == 3) {
        EXPECT_TRUE(std::isnan(with_nan[i]));
      } else {
        EXPECT_EQ(with_nan[i], y[i]);
      }
    }
    Tensor dw(types.result, {2, 7, 5});
    Tensor dy(types.rows, {12, 5});
    dy.Randomize(3);
    ASSERT_TRUE(
        runner.Run(GroupedGemmWgradArgs{x.view(), dy.view(), {sizes, {2}}, dw.view()}).ok());
    for (int64_t i = 0; i < dw.size(); ++i) EXPECT_EQ(std::isnan(dw[i]), i < 35) << i;
  }
}

TEST(GroupedGemmTest, ErrorsNameTheRuleAndLeaveResultsAlone) {
  const KernelRunner runner(2);
  Tensor x(kB, {4, 3});
  Tensor w(kB, {2, 3, 5});
  Tensor y(kF, {4, 5});
  x.Randomize(1), w.Randomize(2);
  const auto run = [&](std::vector<int32_t> sizes) {
    return runner.Run(GroupedGemmArgs{
        x.view(), w.view(), {sizes.data(), {static_cast<int64_t>(sizes.size())}}, y.view()});
  };
  Status status = run({3, -5});
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(),
            "grouped_gemm: group_sizes[1]=-5 is negative; group sizes must be >= 0");
  status = run({3, 2});
  EXPECT_EQ(status.message(),
            "grouped_gemm: group_sizes add up to 5 but there are 4 rows; the sum must not exceed "
            "the rows");
  EXPECT_EQ(run({2147483647, 2147483647}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(run({1, 1, 1}).message(), "grouped_gemm: group_sizes is i32[3]; must be i32[2]");
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_TRUE(std::isnan(y[i]));

  const int32_t sizes[] = {2, 2};
  Tensor wide(kB, {2, 4, 5});
  EXPECT_EQ(
      runner.Run(GroupedGemmArgs{x.view(), wide.view(), {sizes, {2}}, y.view()}).message(),
      "grouped_gemm: x is bf16[4,3] and w is bf16[2,4,5]; axis 1 of x and axis 1 of w must have "
      "the same size");
  EXPECT_EQ(runner.Run(GroupedGemmArgs{y.view(), w.view(), {sizes, {2}}, y.view()}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      runner.Run(GroupedGemmArgs{ConstTensorView(), w.view(), {sizes, {2}}, y.view()}).message(),
      "grouped_gemm: x is absent; must be bf16 or f32 of rank 2");
  SerialExecutor executor;
  EXPECT_EQ(
      GroupedGemm({x.view(), w.view(), {sizes, {2}}, y.view()}, {&executor, nullptr, 0}).code(),
      StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace anabranch
