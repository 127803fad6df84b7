// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
//
// Forward and dgrad are one loop: rows times a packed panel of 64 result columns. A unit of work
// packs one panel of one group's matrix into its worker's scratch and runs the group's rows against
// it, so a weight is read once and a row as often as there are panels (from cache: a group's units
// follow each other). They differ in how the panel is packed.
#include "ops/grouped_gemm/grouped_gemm.h"

#include <cstddef>
#include <cstring>

#include "ops/grouped_gemm/arguments.h"
#include "ops/grouped_gemm/schedule.h"
#include "tile/block.h"
#include "tile/coded/coded.h"
#include "tile/prefetch.h"
#include "tile/tile.h"

namespace anabranch {
namespace {

using tile::kPanelColumns;

// A part of a group's rows must be worth packing the panel again: at 128 rows packing is some 10 %
// of the time (0.1 ns against 1.1 ns per weight).
constexpr int64_t kMinPartRows = 128;
constexpr int64_t kBytesPerCopyUnit = int64_t{1} << 18;

const std::byte* RowOf(const ConstTensorView& view, int64_t pitch, int64_t row) {
  return static_cast<const std::byte*>(view.data()) + row * pitch * SizeOf(view.dtype());
}

// What forward and dgrad share: out[r, :] = rows[r, :] @ (w[g] or its transpose).
struct RowProduct {
  ConstTensorView rows;  // [M, contracted]
  ConstTensorView w;     // [E, K, N]
  TensorView out;        // [M, columns]
  bool transposed;       // contracts over N
  int64_t contracted;
  int64_t columns;
  const WeightCoding* coding;  // null: w is f32 or bf16
};

RowProduct Describe(const GroupedGemmArgs& args, const WeightCoding* coding = nullptr) {
  return {args.x, args.w, args.y, false, args.w.size(1), args.w.size(2), coding};
}
RowProduct Describe(const GroupedGemmDgradArgs& args, const WeightCoding* coding = nullptr) {
  return {args.dy, args.w, args.dx, true, args.w.size(2), args.w.size(1), coding};
}
RowProduct Describe(const GroupedGemmCodedArgs& args) {
  return Describe(args.product, &args.coding);
}
RowProduct Describe(const GroupedGemmDgradCodedArgs& args) {
  return Describe(args.product, &args.coding);
}

// The codes of one group's matrix.
tile::CodedMatrix MatrixOf(const RowProduct& product, int64_t group) {
  const WeightCoding& coding = *product.coding;
  const FormatFacts facts = FactsOf(coding.format);
  const BlockShape block = BlockShapeOf(coding);
  const int64_t k = product.w.size(1), n = product.w.size(2), pitch = coding.scale.size(1);
  tile::CodedMatrix matrix;
  matrix.codes = product.w.as<uint8_t>() + group * k * n;
  matrix.pitch = n;
  matrix.element = facts.element.dtype == DType::kE4M3   ? tile::CodedElement::kE4m3
                   : facts.element.dtype == DType::kE5M2 ? tile::CodedElement::kE5m2
                                                         : tile::CodedElement::kE2m1;
  matrix.scale_type = facts.scale == ScaleKind::kE8m0   ? tile::CodedScale::kE8m0
                      : facts.scale == ScaleKind::kE4m3 ? tile::CodedScale::kE4m3
                                                        : tile::CodedScale::kF32;
  matrix.scale = coding.scale.as<std::byte>() +
                 group * CeilDiv(k, block.rows) * pitch * SizeOf(coding.scale.dtype());
  matrix.scale_pitch = pitch;
  matrix.block_rows = block.rows;
  matrix.block_columns = block.columns;
  return matrix;
}

struct Scratch {
  Scratch(void* block, const RowProduct& product, int num_workers)
      : arena(block), schedule(&arena, product.w.size(0)) {
    const DType type = product.rows.dtype();
    const int64_t num_rows = product.rows.size(0);
    row_pointers = arena.Take<const void*>(num_rows);
    panel_words = tile::WordsOf(type, product.contracted) * kPanelColumns;
    panels = arena.Take<uint32_t>(num_workers * RoundUp(panel_words, 16));
    weight_rows_pitch = product.transposed ? kPanelColumns : product.contracted;
    weight_rows = arena.Take<const void*>(num_workers * weight_rows_pitch);
    // A bf16 row of odd length does not fill its last word: it is read from a padded copy.
    pad_rows = type == DType::kBF16 && product.contracted % 2 == 1;
    padded = arena.Take<BF16>(pad_rows ? num_rows * (product.contracted + 1) : 0);
  }

  uint32_t* panel(int worker) const { return panels + worker * RoundUp(panel_words, 16); }

  ScratchArena arena;
  Schedule schedule;
  const void** row_pointers;
  uint32_t* panels;
  int64_t panel_words;
  const void** weight_rows;
  int64_t weight_rows_pitch;
  BF16* padded;
  bool pad_rows;
};

// Calls copy(first, end) for pieces of num_rows rows, in parallel.
template <typename Copy>
void ForRowPieces(Executor* executor, int64_t num_rows, int64_t row_bytes, const Copy& copy) {
  if (num_rows == 0 || row_bytes == 0) return;
  const int64_t piece = std::max<int64_t>(kBytesPerCopyUnit / row_bytes, 1);
  executor->ParallelFor(CeilDiv(num_rows, piece), [&](int64_t unit, int) {
    copy(unit * piece, std::min((unit + 1) * piece, num_rows));
  });
}

class RowProductRun {
 public:
  RowProductRun(const RowProduct& product, const GroupedGemmProblem& problem,
                const Context& context)
      : product_(product),
        problem_(problem),
        kernels_(tile::Kernels()),
        executor_(context.executor),
        scratch_(context.scratch, product, context.executor->num_workers()),
        num_panels_(CeilDiv(product.columns, kPanelColumns)) {}

  void Run() {
    const int64_t used = product_.contracted == 0 ? 0 : problem_.num_used_rows;
    ZeroRowsFrom(used);
    if (used == 0 || product_.columns == 0) return;
    FillRowPointers(used);
    // Parts are as large as units for every worker allow; a group may have fewer rows than that.
    const int64_t workers = executor_->num_workers();
    const int64_t wanted_units = workers == 1 ? 1 : workers * kUnitsPerWorker;
    const int64_t part_rows = std::max(kMinPartRows, CeilDiv(used * num_panels_, wanted_units));
    scratch_.schedule.Fill(problem_, [&](int64_t rows) {
      return rows == 0 ? 0 : PartsOf(rows, part_rows) * num_panels_;
    });
    executor_->ParallelFor(scratch_.schedule.num_units(), [&](int64_t unit, int worker) {
      // Workers take units in turn, so this is most likely what this one does next.
      const int64_t next = unit + workers;
      RunUnit(UnitAt(unit, part_rows),
              next < scratch_.schedule.num_units() ? PrefetchOf(UnitAt(next, part_rows))
                                                   : tile::PanelPrefetch(),
              worker);
    });
  }

 private:
  static int64_t PartsOf(int64_t rows, int64_t part_rows) {
    return std::max<int64_t>(rows / part_rows, 1);
  }

  void* OutAt(int64_t row, int64_t column) const {
    return static_cast<std::byte*>(product_.out.data()) +
           (row * product_.columns + column) * SizeOf(product_.out.dtype());
  }

  void ZeroRowsFrom(int64_t first) {
    const int64_t row_bytes = product_.columns * SizeOf(product_.out.dtype());
    ForRowPieces(executor_, problem_.num_rows - first, row_bytes, [&](int64_t begin, int64_t end) {
      std::memset(OutAt(first + begin, 0), 0, (end - begin) * row_bytes);
    });
  }

  void FillRowPointers(int64_t used) {
    const int64_t length = product_.contracted;
    for (int64_t r = 0; r < used; ++r) {
      scratch_.row_pointers[r] = scratch_.pad_rows
                                     ? static_cast<const void*>(scratch_.padded + r * (length + 1))
                                     : RowOf(product_.rows, length, r);
    }
    if (!scratch_.pad_rows) return;
    ForRowPieces(executor_, used, (length + 1) * 2, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        BF16* to = scratch_.padded + r * (length + 1);
        std::memcpy(to, RowOf(product_.rows, length, r), length * sizeof(BF16));
        to[length] = BF16{0};
      }
    });
  }

  struct Unit {
    int64_t group;
    int64_t first_column;
    int columns;
    Range part;  // of the group's rows
  };

  Unit UnitAt(int64_t unit, int64_t part_rows) const {
    const Schedule::Unit at = scratch_.schedule.At(unit);
    const int64_t rows = scratch_.schedule.rows(at.group);
    const int64_t parts = PartsOf(rows, part_rows);
    const int64_t column = at.index / parts * kPanelColumns;
    return {at.group, column,
            static_cast<int>(std::min<int64_t>(kPanelColumns, product_.columns - column)),
            PartOf(rows, parts, at.index % parts, tile::kTileRows)};
  }

  // The part of w that a unit packs: some columns of all rows of its matrix, or the transpose.
  const std::byte* FirstWeight(const Unit& unit) const {
    const int64_t row = unit.group * problem_.k + (product_.transposed ? unit.first_column : 0);
    return RowOf(product_.w, problem_.n, row);
  }
  int64_t NumWeightRows(const Unit& unit) const {
    return product_.transposed ? unit.columns : problem_.k;
  }

  tile::PanelPrefetch PrefetchOf(const Unit& unit) const {
    const int64_t size = SizeOf(product_.w.dtype());
    const int64_t skipped = product_.transposed ? 0 : unit.first_column;
    const int64_t length = product_.transposed ? problem_.n : unit.columns;
    return tile::PanelPrefetch(FirstWeight(unit) + skipped * size, problem_.n * size,
                               NumWeightRows(unit), length * size);
  }

  void PackCodes(const Unit& unit, int worker) {
    const tile::CodedMatrix matrix = MatrixOf(product_, unit.group);
    if (product_.transposed) {
      tile::PackCodedTransposed(kernels_, matrix, {unit.first_column, unit.columns, 0, problem_.n},
                                scratch_.panel(worker));
    } else {
      tile::PackCodedRows(kernels_.isa, matrix, {0, problem_.k, unit.first_column, unit.columns},
                          scratch_.panel(worker));
    }
  }

  void PackPanel(const Unit& unit, int worker) {
    if (product_.coding != nullptr) return PackCodes(unit, worker);
    const tile::Packer& packer = kernels_.pack(product_.w.dtype(), product_.rows.dtype());
    const void** rows = scratch_.weight_rows + worker * scratch_.weight_rows_pitch;
    const std::byte* first = FirstWeight(unit);
    const int64_t pitch_bytes = problem_.n * SizeOf(product_.w.dtype());
    for (int64_t i = 0; i < NumWeightRows(unit); ++i) rows[i] = first + i * pitch_bytes;
    if (product_.transposed) {
      packer.transposed(rows, unit.columns, 0, problem_.n, scratch_.panel(worker));
    } else {
      packer.rows(rows, problem_.k, unit.first_column, unit.columns, kPanelColumns,
                  scratch_.panel(worker));
    }
  }

  void RunUnit(const Unit& unit, const tile::PanelPrefetch& next, int worker) {
    PackPanel(unit, worker);
    const int64_t first_row = scratch_.schedule.first_row(unit.group) + unit.part.begin;
    const int64_t num_rows = unit.part.end - unit.part.begin;
    const tile::Epilogue& epilogue = kernels_.epilogue(product_.out.dtype());
    const DType type = product_.rows.dtype();
    tile::ForEachRowTile(kernels_.product(type), scratch_.row_pointers + first_row, num_rows,
                         tile::WordsOf(type, product_.contracted), scratch_.panel(worker),
                         unit.columns, [&](int64_t first, int rows, const float* tile) {
                           next.Step(first, first + rows, num_rows);
                           void* out_rows[tile::kTileRows];
                           for (int r = 0; r < rows; ++r)
                             out_rows[r] = OutAt(first_row + first + r, unit.first_column);
                           epilogue.store(tile, rows, unit.columns, out_rows);
                         });
  }

  const RowProduct& product_;
  const GroupedGemmProblem& problem_;
  const tile::KernelTable& kernels_;
  Executor* const executor_;
  Scratch scratch_;
  const int64_t num_panels_;
};

template <typename Args>
Status RunRowProduct(const char* op, const Args& args, const Context& context) {
  GroupedGemmProblem problem;
  ANABRANCH_RETURN_IF_ERROR(Validate(args, &problem));
  const RowProduct product = Describe(args);
  const int64_t needed =
      Scratch(nullptr, product, context.executor->num_workers()).arena.used_bytes();
  ANABRANCH_RETURN_IF_ERROR(CheckScratch(op, context, needed));
  RowProductRun(product, problem, context).Run();
  return Status::Ok();
}

}  // namespace

int64_t GroupedGemmScratchBytes(const GroupedGemmArgs& args, int num_workers) {
  return Scratch(nullptr, Describe(args), num_workers).arena.used_bytes();
}

Status GroupedGemm(const GroupedGemmArgs& args, const Context& context) {
  return RunRowProduct("grouped_gemm", args, context);
}

int64_t GroupedGemmDgradScratchBytes(const GroupedGemmDgradArgs& args, int num_workers) {
  return Scratch(nullptr, Describe(args), num_workers).arena.used_bytes();
}

Status GroupedGemmDgrad(const GroupedGemmDgradArgs& args, const Context& context) {
  return RunRowProduct("grouped_gemm_dgrad", args, context);
}

int64_t GroupedGemmCodedScratchBytes(const GroupedGemmCodedArgs& args, int num_workers) {
  return Scratch(nullptr, Describe(args), num_workers).arena.used_bytes();
}

Status GroupedGemmCoded(const GroupedGemmCodedArgs& args, const Context& context) {
  return RunRowProduct("grouped_gemm_coded", args, context);
}

int64_t GroupedGemmDgradCodedScratchBytes(const GroupedGemmDgradCodedArgs& args, int num_workers) {
  return Scratch(nullptr, Describe(args), num_workers).arena.used_bytes();
}

Status GroupedGemmDgradCoded(const GroupedGemmDgradCodedArgs& args, const Context& context) {
  return RunRowProduct("grouped_gemm_dgrad_coded", args, context);
}

}  // namespace anabranch
