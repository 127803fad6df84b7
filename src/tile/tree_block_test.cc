// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/tree_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/poisoned_scratch.h"
namespace anabranch::tile {
namespace {

template <typename T>
struct Matrix {
  Matrix(int64_t rows, int64_t columns, unsigned seed) : data(rows * columns), pointers(rows) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (T& value : data) value = FromFloat<T>(normal(random));
    for (int64_t r = 0; r < rows; ++r) pointers[r] = &data[r * columns];
  }
  std::vector<T> data;
  std::vector<const void*> pointers;
};

template <typename T>
struct Problem {
  Problem(const KernelTable& table, int64_t rows, int64_t a_columns, int64_t b_columns)
      : kernels(table),
        a(rows, a_columns, 1),
        b(rows, b_columns, 2),
        num_a(a_columns),
        num_b(b_columns) {}

  TransposedProduct Product(int64_t first_row, int64_t rows, void* out, DType out_dtype) const {
    const DType type = kDTypeOf<T>;
    return {a.pointers.data() + first_row,
            b.pointers.data() + first_row,
            rows,
            type,
            type,
            type,
            0,
            num_a,
            0,
            num_b,
            out,
            out_dtype,
            num_b};
  }

  // The sum over rows [first, first + rows) with leaves that begin at `begin`, which counts from
  // `first`.
  template <typename Out = float>
  std::vector<Out> Tree(int64_t first, const std::vector<int64_t>& begin, float scale = 1) const {
    const int leaves = static_cast<int>(begin.size()) - 1;
    const PoisonedScratch out(num_a * num_b * sizeof(Out));
    const PoisonedScratch scratch(
        TransposedTreeScratchBytes(kDTypeOf<T>, begin.back(), num_a, leaves));
    TransposedTreeBlock(kernels, Product(first, begin.back(), out.data(), kDTypeOf<Out>),
                        {begin.data(), leaves, scale}, scratch.data());
    StreamFence();
    const Out* values = static_cast<const Out*>(out.data());
    return {values, values + num_a * num_b};
  }

  // The oracle: every leaf on its own, then pairs of sums.
  std::vector<float> Pairwise(const std::vector<int64_t>& begin, size_t first, size_t end,
                              float scale = 1) const {
    std::vector<float> sum(num_a * num_b);
    if (end - first == 1) {
      const int64_t rows = begin[end] - begin[first];
      const PoisonedScratch scratch(TransposedProductScratchBytes(kDTypeOf<T>, rows, num_a));
      TransposedProductBlock(kernels, Product(begin[first], rows, sum.data(), DType::kF32),
                             scratch.data());
      StreamFence();
      for (float& value : sum) value *= scale;
      return sum;
    }
    const size_t middle = (first + end) / 2;
    const std::vector<float> left = Pairwise(begin, first, middle, scale);
    const std::vector<float> right = Pairwise(begin, middle, end, scale);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = left[i] + right[i];
    return sum;
  }

  const KernelTable& kernels;
  const Matrix<T> a, b;
  const int64_t num_a, num_b;
};

template <typename T>
void ExpectSameBits(const std::vector<T>& actual, const std::vector<T>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
        << i << ": " << ToFloat(actual[i]) << " and " << ToFloat(expected[i]);
  }
}

std::vector<int64_t> EvenLeaves(int64_t rows, int count) {
  std::vector<int64_t> begin(count + 1);
  for (int i = 0; i <= count; ++i) begin[i] = LeafBegin(rows, count, i);
  return begin;
}

template <typename T>
void CheckTree(const KernelTable& kernels, int64_t num_a, int64_t num_b,
               const std::vector<int64_t>& begin) {
  SCOPED_TRACE(testing::Message() << Name(kernels.isa) << " rows " << begin.back() << " block "
                                  << num_a << "x" << num_b << " leaves " << begin.size() - 1);
  const Problem<T> problem(kernels, begin.back(), num_a, num_b);
  const std::vector<float> expected = problem.Pairwise(begin, 0, begin.size() - 1);
  ExpectSameBits(problem.Tree(0, begin), expected);
  std::vector<BF16> rounded;
  for (float value : expected) rounded.push_back(ToBF16(value));
  ExpectSameBits(problem.template Tree<BF16>(0, begin), rounded);
  constexpr float kScale = 0.7f;  // no power of two: where it is applied shows
  ExpectSameBits(problem.Tree(0, begin, kScale),
                 problem.Pairwise(begin, 0, begin.size() - 1, kScale));
}

TEST(TransposedTreeBlockTest, IsThePairwiseSumOfItsLeavesOnEveryTable) {
  for (int i = 0; i < kNumIsas; ++i) {
    const KernelTable* kernels = FindKernels(static_cast<Isa>(i));
    if (kernels == nullptr) continue;
    for (int leaves : {1, 2, 8, 64}) {
      CheckTree<BF16>(*kernels, 13, 43, EvenLeaves(333, leaves));   // leaves of odd sizes
      CheckTree<float>(*kernels, 7, 128, EvenLeaves(40, leaves));   // and empty ones
      CheckTree<BF16>(*kernels, 2, 520, EvenLeaves(2500, leaves));  // several packs and slabs
    }
    CheckTree<float>(*kernels, 2, 70, EvenLeaves(9001, 4));  // leaves of several pieces
    CheckTree<BF16>(*kernels, 6, 64, {0, 0, 7, 7, 2600});
  }
}

TEST(TransposedTreeBlockTest, SubtreesOfRanksAddUpToTheSameBits) {
  constexpr int64_t kRows = 4096;
  const Problem<BF16> problem(Kernels(), kRows, 24, 80);
  const std::vector<float> whole = problem.Tree(0, EvenLeaves(kRows, 8));
  for (int ranks : {2, 4, 8}) {
    std::vector<std::vector<float>> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      parts.push_back(problem.Tree(rank * kRows / ranks, EvenLeaves(kRows / ranks, 8 / ranks)));
    }
    for (int step = 1; step < ranks; step *= 2) {
      for (int rank = 0; rank < ranks; rank += 2 * step) {
        for (size_t i = 0; i < whole.size(); ++i) parts[rank][i] += parts[rank + step][i];
      }
    }
    ExpectSameBits(parts[0], whole);
  }
}

TEST(TransposedTreeBlockTest, NoRowsGiveExactPositiveZero) {
  const Problem<BF16> problem(Kernels(), 0, 2, 3);
  ExpectSameBits(problem.Tree(0, EvenLeaves(0, 8)), std::vector<float>(6, 0.0f));
}

}  // namespace
}  // namespace anabranch::tile
