// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "tile/block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/poisoned_scratch.h"
namespace anabranch::tile {
namespace {

TEST(RowTileTest, TilesAreBalancedAndCoverEveryRowOnce) {
  for (int64_t rows = 1; rows < 200; ++rows) {
    int64_t next = 0;
    int smallest = kTileRows;
    int largest = 0;
    for (int64_t index = 0; index < NumRowTiles(rows); ++index) {
      const RowTile at = RowTileAt(rows, index);
      EXPECT_EQ(at.first, next);
      next += at.rows;
      smallest = std::min(smallest, at.rows);
      largest = std::max(largest, at.rows);
    }
    EXPECT_EQ(next, rows);
    EXPECT_LE(largest, kTileRows);
    EXPECT_LE(largest - smallest, 1);
  }
  EXPECT_EQ(RowTileAt(13, 0).rows, 5);
  EXPECT_EQ(RowTileAt(13, 2).rows, 4);
}

// Rows of random numbers that bf16 holds exactly, so that only summation rounds.
template <typename T>
struct Matrix {
  Matrix(int64_t rows, int64_t columns, unsigned seed)
      : pitch(columns), data(rows * columns), pointers(rows) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (T& value : data) value = FromFloat<T>(ToFloat(ToBF16(normal(random))));
    for (int64_t r = 0; r < rows; ++r) pointers[r] = &data[r * columns];
  }
  float at(int64_t r, int64_t c) const { return ToFloat(data[r * pitch + c]); }

  int64_t pitch;
  std::vector<T> data;
  std::vector<const void*> pointers;
};

struct Shape {
  int64_t rows, a, b;
};

template <typename In, typename Out>
void CheckBlock(const KernelTable& kernels, Shape shape, DType dtype, int64_t first) {
  SCOPED_TRACE(testing::Message() << Name(kernels.isa) << " rows " << shape.rows << " block "
                                  << shape.a << "x" << shape.b << " first " << first);
  const Matrix<In> a(shape.rows, shape.a + first, 1);
  const Matrix<In> b(shape.rows, shape.b + first, 2);
  const int64_t pitch = shape.b + first;
  const PoisonedScratch out(shape.a * pitch * sizeof(Out));
  const PoisonedScratch scratch(TransposedProductScratchBytes(dtype, shape.rows, shape.a));
  const std::vector<std::byte> before(
      static_cast<std::byte*>(out.data()),
      static_cast<std::byte*>(out.data()) + shape.a * pitch * sizeof(Out));
  TransposedProductBlock(
      kernels,
      {a.pointers.data(), b.pointers.data(), shape.rows, kDTypeOf<In>, kDTypeOf<In>, dtype, first,
       shape.a, first, shape.b, out.data(), kDTypeOf<Out>, pitch},
      scratch.data());
  StreamFence();
  // gamma_n of a sum of n products in any order, and the rounding of the result.
  const double unit = std::ldexp(1.0, -24);
  const double result_unit = sizeof(Out) == 2 ? std::ldexp(1.0, -8) : unit;
  const Out* values = static_cast<const Out*>(out.data());
  for (int64_t i = 0; i < shape.a; ++i) {
    for (int64_t j = 0; j < shape.b; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t m = 0; m < shape.rows; ++m) {
        const double term = double{a.at(m, first + i)} * b.at(m, first + j);
        sum += term;
        magnitude += std::abs(term);
      }
      const double bound =
          (shape.rows + 2) * unit * magnitude + result_unit * (std::abs(sum) + magnitude * unit);
      ASSERT_LE(std::abs(ToFloat(values[i * pitch + j]) - sum), bound) << i << "," << j;
    }
    // What lies between blocks is untouched.
    ASSERT_EQ(std::memcmp(values + i * pitch + shape.b, before.data(), first * sizeof(Out)), 0);
  }
}

// The last two are more than one chunk of f32, and of both types with more than one slab.
const Shape kShapes[] = {{1, 1, 1},    {2, 7, 64},    {3, 64, 16},   {17, 13, 43},
                         {48, 30, 80}, {333, 5, 100}, {1100, 4, 70}, {2100, 2, 520}};

TEST(TransposedProductBlockTest, MatchesAPlainSumOnEveryTable) {
  for (int i = 0; i < kNumIsas; ++i) {
    const KernelTable* kernels = FindKernels(static_cast<Isa>(i));
    if (kernels == nullptr) continue;
    for (const Shape& shape : kShapes) {
      for (int64_t first : {0, 3, 16}) {
        CheckBlock<BF16, float>(*kernels, shape, DType::kBF16, first);
        CheckBlock<BF16, BF16>(*kernels, shape, DType::kBF16, first);
        CheckBlock<float, float>(*kernels, shape, DType::kF32, first);
        CheckBlock<float, BF16>(*kernels, shape, DType::kF32, first);
        CheckBlock<float, float>(*kernels, shape, DType::kBF16, first);  // rounded while packed
      }
    }
  }
}

template <typename In, typename Out>
void CheckSecond(const Shape& shape, DType dtype) {
  SCOPED_TRACE(testing::Message() << "rows " << shape.rows << " block " << shape.a << "x"
                                  << shape.b);
  const Matrix<In> a(shape.rows, shape.a, 1), b(shape.rows, 2 * shape.b, 2);
  const PoisonedScratch scratch(TransposedProductScratchBytes(dtype, shape.rows, shape.a));
  std::vector<Out> apart(2 * shape.a * shape.b, FromFloat<Out>(NAN)), together = apart;
  TransposedProduct product = {a.pointers.data(),
                               b.pointers.data(),
                               shape.rows,
                               kDTypeOf<In>,
                               kDTypeOf<In>,
                               dtype,
                               0,
                               shape.a,
                               shape.b,
                               shape.b,
                               &apart[shape.a * shape.b],
                               kDTypeOf<Out>,
                               shape.b};
  TransposedProductBlock(Kernels(), product, scratch.data());
  product.first_b = 0;
  product.out = apart.data();
  const TransposedProduct next = product;
  TransposedProductBlock(Kernels(), product, scratch.data());
  product.out = together.data();
  product.second_out = &together[shape.a * shape.b];
  product.second_b = shape.b;
  product.next = &next;
  TransposedProductBlock(Kernels(), product, scratch.data());
  StreamFence();
  EXPECT_EQ(std::memcmp(apart.data(), together.data(), apart.size() * sizeof(Out)), 0);
}

TEST(TransposedProductBlockTest, SecondProductAndNextBlockChangeNoBit) {
  for (Shape shape : kShapes) {
    for (int64_t rows : {int64_t{0}, shape.rows}) {
      shape.rows = rows;
      CheckSecond<BF16, float>(shape, DType::kBF16);
      CheckSecond<BF16, BF16>(shape, DType::kBF16);
      CheckSecond<float, float>(shape, DType::kF32);
      CheckSecond<float, BF16>(shape, DType::kF32);
    }
  }
}

TEST(TransposedProductBlockTest, NoRowsGiveExactPositiveZero) {
  float out[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
  TransposedProductBlock(Kernels(),
                         {nullptr, nullptr, 0, DType::kBF16, DType::kBF16, DType::kBF16, 0, 2, 0, 3,
                          out, DType::kF32, 3},
                         nullptr);
  const float zeros[6] = {};
  EXPECT_EQ(std::memcmp(out, zeros, sizeof(out)), 0);
}

}  // namespace
}  // namespace anabranch::tile
