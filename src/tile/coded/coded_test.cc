// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
// Codes to panels against decoding one element after the other, bit for bit, on every instruction
// set of this CPU.
#include "tile/coded/coded.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tile/tile.h"

namespace anabranch::tile {
namespace {

constexpr int64_t kRows = 150, kColumns = 300;
constexpr Isa kIsas[] = {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

struct Problem {
  CodedMatrix matrix;
  std::vector<uint8_t> codes = std::vector<uint8_t>(kRows * kColumns);
  std::vector<uint8_t> scales = std::vector<uint8_t>(4 * kRows * kColumns);

  // All codes, NaN among them with `strange`; scales likewise, else those of ordinary tensors: the
  // ones that no kernel has an exception for.
  Problem(CodedElement element, CodedScale scale, int64_t block_rows, int64_t block_columns,
          bool strange) {
    std::mt19937 random(static_cast<uint32_t>(block_rows * 7 + block_columns));
    const bool small = element == CodedElement::kE2m1;
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(random());
      if (small) code &= 15;
      if (!strange && !small && (code & 0x7f) > 0x7b) code ^= 8;
    }
    for (size_t i = 0; i < scales.size() / 4; ++i) {
      if (scale == CodedScale::kF32) {
        const float power = std::ldexp(1.0f, static_cast<int>(random() % 40) - 34);
        const float value = strange ? power * 1.1f : power;
        std::memcpy(&scales[4 * i], &value, 4);
      } else if (scale == CodedScale::kE8m0) {
        scales[i] = static_cast<uint8_t>(strange ? random() : 100 + random() % 34);
      } else {
        scales[i] = static_cast<uint8_t>(random() % (strange ? 128 : 127));
      }
    }
    const int64_t pitch = (kColumns + block_columns - 1) / block_columns;
    matrix = {codes.data(),  kColumns, element,    scale,
              scales.data(), pitch,    block_rows, block_columns};
  }
};

// NaN payloads count, too: the products never see them, but panels are compared as words.
std::vector<BF16> Decoded(const Problem& p, const CodedPart& part) {
  std::vector<BF16> values(part.rows * part.columns);
  DecodeCodesReference(p.matrix, part, values.data(), part.columns);
  return values;
}
bool SameValues(const std::vector<BF16>& a, const std::vector<BF16>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const bool nan = (a[i].bits & 0x7fff) > 0x7f80 && (b[i].bits & 0x7fff) > 0x7f80;
    if (a[i].bits != b[i].bits && !nan) return false;
  }
  return a.size() == b.size();
}
std::vector<BF16> Halves(const std::vector<uint32_t>& words) {
  std::vector<BF16> halves(2 * words.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i].bits = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
  }
  return halves;
}

template <typename Check>
void ForEachProblem(const Check& check) {
  for (int element = 0; element < 3; ++element) {
    for (int scale = 0; scale < 3; ++scale) {
      for (const auto& [block_rows, block_columns] :
           {std::pair<int64_t, int64_t>{1, 32}, {32, 1}, {16, 16}, {1, 16}, {128, 128}}) {
        for (const bool strange : {false, true}) {
          check(Problem(static_cast<CodedElement>(element), static_cast<CodedScale>(scale),
                        block_rows, block_columns, strange),
                "element " + std::to_string(element) + " scale " + std::to_string(scale) +
                    " block " + std::to_string(block_rows) + " x " + std::to_string(block_columns) +
                    (strange ? " strange" : ""));
        }
      }
    }
  }
}

// Whole panels, narrow ones, odd rows, and borders inside of blocks.
const CodedPart kPanels[] = {{0, 64, 0, 64}, {32, 118, 128, 64}, {7, 41, 3, 29}, {0, 1, 299, 1}};

TEST(CodedTest, ReferencePacksWhatItDecodes) {
  const uint8_t codes[] = {0x38, 0xb8, 0x01, 0x7e};  // 1, -1, 2^-9, 448 in E4M3
  const uint8_t scales[] = {128, 126};               // 2, 1/2
  const CodedMatrix matrix = {codes, 2, CodedElement::kE4m3, CodedScale::kE8m0, scales, 1, 1, 32};
  BF16 values[4];
  DecodeCodesReference(matrix, {0, 2, 0, 2}, values, 2);
  EXPECT_EQ(ToFloat(values[0]), 2);
  EXPECT_EQ(ToFloat(values[1]), -2);
  EXPECT_EQ(ToFloat(values[2]), 0x1p-10f);
  EXPECT_EQ(ToFloat(values[3]), 224);
  std::vector<uint32_t> panel(kPanelColumns, 1);
  PackCodedRowsReference(matrix, {0, 2, 0, 2}, panel.data());
  EXPECT_EQ(panel[0], values[0].bits | static_cast<uint32_t>(values[2].bits) << 16);
  EXPECT_EQ(panel[1], values[1].bits | static_cast<uint32_t>(values[3].bits) << 16);
  EXPECT_EQ(panel[2], 0u);
}

TEST(CodedTest, DecodesAsTheReference) {
  ForEachProblem([](const Problem& p, const std::string& what) {
    for (const CodedPart& part :
         {CodedPart{0, 150, 0, 300}, {5, 3, 17, 64}, {31, 2, 290, 10}, {70, 40, 128, 128}}) {
      for (const Isa isa : kIsas) {
        if (FindKernels(isa) == nullptr) continue;
        std::vector<BF16> values(part.rows * part.columns);
        DecodeCodes(isa, p.matrix, part, values.data(), part.columns);
        EXPECT_TRUE(SameValues(values, Decoded(p, part))) << what << " isa " << Name(isa);
      }
    }
  });
}

TEST(CodedTest, PacksRowsAsTheReference) {
  ForEachProblem([](const Problem& p, const std::string& what) {
    for (const CodedPart& part : kPanels) {
      const int64_t words = WordsOf(DType::kBF16, part.rows) * kPanelColumns;
      std::vector<uint32_t> want(words);
      PackCodedRowsReference(p.matrix, part, want.data());
      for (const Isa isa : kIsas) {
        if (FindKernels(isa) == nullptr) continue;
        std::vector<uint32_t> panel(words, 0xeeeeeeee);
        PackCodedRows(isa, p.matrix, part, panel.data());
        EXPECT_TRUE(SameValues(Halves(panel), Halves(want))) << what << " isa " << Name(isa);
      }
    }
  });
}

// The two that turn rows into columns: as the packer of the values.
TEST(CodedTest, TransposesAsThePackerOfItsValues) {
  ForEachProblem([](const Problem& p, const std::string& what) {
    for (const CodedPart& part :
         {CodedPart{0, 64, 0, 300}, {70, 64, 128, 131}, {70, 30, 11, 131}, {149, 1, 0, 1}}) {
      const std::vector<BF16> values = Decoded(p, part);
      std::vector<const void*> rows(part.rows);
      for (int64_t r = 0; r < part.rows; ++r) rows[r] = values.data() + r * part.columns;
      for (const Isa isa : kIsas) {
        const KernelTable* kernels = FindKernels(isa);
        if (kernels == nullptr) continue;
        const Packer& packer = kernels->pack_bf16_bf16;
        std::vector<uint32_t> want(WordsOf(DType::kBF16, part.columns) * kPanelColumns), got = want;
        packer.transposed(rows.data(), static_cast<int>(part.rows), 0, part.columns, want.data());
        PackCodedTransposed(*kernels, p.matrix, part, got.data());
        EXPECT_TRUE(SameValues(Halves(got), Halves(want))) << what << " isa " << Name(isa);
        const int64_t words = WordsOf(DType::kBF16, part.rows), pitch = words + 16;
        want.assign(part.columns * pitch, 0);
        got = want;
        packer.transpose(rows.data(), part.rows, 0, part.columns, want.data(), pitch);
        TransposeCodedRows(*kernels, p.matrix, part, got.data(), pitch);
        for (int64_t c = 0; c < part.columns; ++c) {
          const auto row = [&](const std::vector<uint32_t>& all) {
            return Halves({all.begin() + c * pitch, all.begin() + c * pitch + words});
          };
          ASSERT_TRUE(SameValues(row(got), row(want))) << what << " column " << c;
        }
      }
    }
  });
}

}  // namespace
}  // namespace anabranch::tile
