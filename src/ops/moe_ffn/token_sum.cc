// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/moe_ffn/token_sum.h"

#include <algorithm>
#include <cstring>

#include "tile/block.h"
#include "tile/tile.h"

namespace anabranch::moe_ffn {
namespace {

using tile::kPanelColumns;

int64_t NumPanels(int64_t hidden) { return CeilDiv(hidden, kPanelColumns); }

// Panels [first_panel, last_panel) for the tokens [first_token, last_token): one unit of work.
class Slab {
 public:
  Slab(const Sizes& sizes, const Rows& rows, const TokenSum& sum, const TokenSumScratch& scratch,
       int64_t first_panel, int64_t last_panel, int64_t first_token, int64_t last_token)
      : sizes_(sizes),
        rows_(rows),
        sum_(sum),
        scratch_(scratch),
        kernels_(tile::Kernels()),
        first_panel_(first_panel),
        last_panel_(last_panel),
        first_token_(first_token),
        last_token_(last_token),
        pitch_((last_panel - first_panel) * kPanelColumns) {}

  void Run() {
    std::memset(scratch_.sums, 0, (last_token_ - first_token_) * pitch_ * sizeof(float));
    for (int64_t e = 0; e < sizes_.experts; ++e) {
      // An expert's rows ascend by token: the block's rows are a run of them.
      const int32_t* end = rows_.token + rows_.offsets[e + 1];
      const int32_t* first = std::lower_bound(rows_.token + rows_.offsets[e], end, first_token_);
      const int32_t* last = std::lower_bound(first, end, last_token_);
      if (first == last) continue;
      for (int64_t panel = first_panel_; panel < last_panel_; ++panel) {
        AddPanel(e, panel, first - rows_.token, last - first);
      }
    }
    WriteOut();
  }

 private:
  int Columns(int64_t panel) const {
    return static_cast<int>(
        std::min<int64_t>(kPanelColumns, sizes_.hidden - panel * kPanelColumns));
  }
  float* Sums(int64_t token, int64_t panel) const {
    return scratch_.sums + (token - first_token_) * pitch_ + (panel - first_panel_) * kPanelColumns;
  }

  // Adds rows [first_row, first_row + num_rows) of the expert.
  void AddPanel(int64_t expert, int64_t panel, int64_t first_row, int64_t num_rows) {
    tile::Panel weights = sum_.panels.Get(expert, panel, scratch_.pointers, scratch_.panel);
    std::array<tile::PanelPrefetch, 2> next;
    // After this panel comes the slab's next one, or the next expert's first.
    const bool more = panel + 1 < last_panel_;
    if (more || expert + 1 < sizes_.experts) {
      const int64_t next_expert = more ? expert : expert + 1;
      const int64_t next_panel = more ? panel + 1 : first_panel_;
      sum_.panels.Announce(next_expert, next_panel, &weights);
      next = sum_.panels.Prefetch(next_expert, next_panel);
    }
    const int32_t* tokens = rows_.token + first_row;
    const auto prepare = [&](int64_t row, int count) {
      for (int r = 0; r < count; ++r) {
        tile::PrefetchLines(Sums(tokens[row + r], panel), kPanelColumns * sizeof(float));
      }
    };
    const auto finish = [&](int64_t row, int count, const float* tile) {
      float* sums[tile::kTileRows];
      for (int r = 0; r < count; ++r) sums[r] = Sums(tokens[row + r], panel);
      const float* weight =
          sum_.row_weight == nullptr ? nullptr : sum_.row_weight + first_row + row;
      kernels_.epilogue(sizes_.type).combine(tile, count, weights.columns, weight, sums);
      for (const auto& prefetch : next) prefetch.Step(row, row + count, num_rows);
    };
    tile::ForEachRowTile(kernels_, sizes_.type, sum_.a_rows + first_row, num_rows, sum_.words,
                         weights, prepare, finish);
  }

  void WriteOut() const {
    char* out = static_cast<char*>(sum_.out.data());
    for (int64_t t = first_token_; t < last_token_; ++t) {
      for (int64_t panel = first_panel_; panel < last_panel_; ++panel) {
        void* to = out + (t * sizes_.hidden + panel * kPanelColumns) * sizes_.element_bytes();
        kernels_.epilogue(sizes_.type).store(Sums(t, panel), 1, Columns(panel), &to);
      }
    }
  }

  const Sizes& sizes_;
  const Rows& rows_;
  const TokenSum& sum_;
  const TokenSumScratch& scratch_;
  const tile::KernelTable& kernels_;
  const int64_t first_panel_, last_panel_;
  const int64_t first_token_, last_token_;
  const int64_t pitch_;  // of sums
};

}  // namespace

// The fewest blocks of tokens, then the widest slabs, that keep the workers at least 90 % busy.
TokenSumCut CutTokenSum(int64_t tokens, int64_t hidden, int64_t workers) {
  const int64_t panels = NumPanels(hidden);
  const int64_t least = std::max<int64_t>(1, CeilDiv(tokens, kTokenBlock));
  for (int64_t blocks = least; blocks < least + workers; ++blocks) {
    for (int64_t width = kSlabPanels; width > 0; width /= 2) {
      const int64_t slabs = CeilDiv(panels, width);
      const int64_t turns = CeilDiv(slabs * blocks, workers);
      const int64_t longest = turns * CeilDiv(panels, slabs);  // panels that one worker may get
      if (10 * panels * blocks >= 9 * longest * workers) return {slabs, blocks};
    }
  }
  return {panels, least};
}

TokenSumScratch TakeTokenSumScratch(const Sizes& sizes, int64_t words, ScratchArena* arena) {
  TokenSumScratch scratch;
  const int64_t slab_panels = std::min(kSlabPanels, NumPanels(sizes.hidden));
  scratch.sums =
      arena->Take<float>(std::min(sizes.tokens, kTokenBlock) * slab_panels * kPanelColumns);
  scratch.panel = arena->Take<uint32_t>(words * kPanelColumns);
  scratch.pointers = arena->Take<const void*>(ExpertPanelPointers(sizes.hidden, sizes.width));
  return scratch;
}

void RunTokenSum(const Sizes& sizes, const Rows& rows, const TokenSum& sum,
                 const TokenSumScratch* scratch, Executor* executor) {
  if (sizes.tokens == 0 || sizes.hidden == 0) return;
  const auto [slabs, blocks] = CutTokenSum(sizes.tokens, sizes.hidden, executor->num_workers());
  const int64_t panels = NumPanels(sizes.hidden);
  executor->ParallelFor(
      slabs * blocks, [&, slabs = slabs, blocks = blocks](int64_t unit, int worker) {
        const int64_t block = unit / slabs, slab = unit % slabs;
        Slab(sizes, rows, sum, scratch[worker], panels * slab / slabs, panels * (slab + 1) / slabs,
             sizes.tokens * block / blocks, sizes.tokens * (block + 1) / blocks)
            .Run();
      });
}

}  // namespace anabranch::moe_ffn
