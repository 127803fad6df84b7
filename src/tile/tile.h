// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_TILE_TILE_H_
#define ANABRANCH_TILE_TILE_H_

#include <cstdint>
#include <string>

#include "base/cpu_features.h"
#include "base/dtype.h"
#include "tile/loss.h"
#include "tile/norm.h"
#include "tile/optimizer.h"
#include "tile/softmax.h"

// The one matrix microkernel, and what surrounds it: packing before, epilogues after.
//
// Everything is expressed in 32-bit words along the contracted dimension k, so that one loop serves
// both element types: a word is one f32, or two bf16 with consecutive k (even k in the low half).
//   A      is read in place through row pointers: a row of a row-major matrix already is a run of
//          words, so gathering rows costs nothing. K must be even for bf16 (callers pad odd rows).
//   Panel  64 columns of B: word w of column c lies at panel[w * 64 + c]. Missing columns and the
//          missing half of an odd last word are zero.
//   Tile   the product of up to 6 rows with one panel, f32, written with a row pitch of out_pitch.
// The same shapes hold on every instruction set; only the code inside differs.
namespace anabranch::tile {

// 6 x 64: 24 zmm accumulators + 4 of B + 1 of A <= 32. Six rows also stay clear of the 8 ways of a
// 32 KiB L1 cache when rows lie 4 KiB apart (hidden 2048 in bf16), which all map to one set.
inline constexpr int kTileRows = 6;
inline constexpr int kPanelColumns = 64;
// Gate and up columns share a panel, so that one tile holds both factors of an activation.
inline constexpr int kGateColumns = kPanelColumns / 2;

// Words that K elements of a type fill.
constexpr int64_t WordsOf(DType dtype, int64_t k) {
  return dtype == DType::kBF16 ? (k + 1) / 2 : k;
}

enum class Store {
  kWrite,       // out = tile
  kAccumulate,  // out += tile
  kStream,      // out = tile, past the caches; needs out 64-byte aligned and out_pitch % 16 == 0
  kStreamBf16,  // out = tile rounded to bf16, past the caches; out as before, out_pitch % 32 == 0
};

enum class Activation {
  kSwiglu,         // silu(gate) * up
  kGeglu,          // gelu_tanh(gate) * up
  kReglu,          // relu(gate) * up
  kClampedSwiglu,  // g = min(gate, 7), u = clip(up, -7, 7): (u + 1) * g * sigmoid(1.702 g)
};

// out[r * out_pitch + c] = sum over w < words of a_rows[r].word[w] . panel[w * 64 + c], for
// r < rows (1..6) and c < 16 * ceil(columns / 16): a last partial vector is written whole.
// out is f32, for kStreamBf16 bf16. Each element is summed in ascending k by one accumulator, so
// its bits depend on the instruction set and on nothing else (not on rows, columns or position).
using ProductFn = void (*)(const void* const* a_rows, int rows, int64_t words,
                           const uint32_t* panel, int columns, void* out, int64_t out_pitch,
                           Store store);

// The same for bf16, whole panels and Store::kWrite into a tile; while it runs it asks for the
// `words` cache lines from `ahead` on, evenly: packed panels that come next arrive while the
// multipliers are busy. Asked for in one burst they would hold up what is being multiplied.
using ProductAheadFn = void (*)(const void* const* a_rows, int rows, int64_t words,
                                const uint32_t* panel, float* tile, const void* ahead);

// One conversion of elements while packing: f32 -> f32, f32 -> bf16 (rounds to nearest even) or
// bf16 -> bf16.
struct Packer {
  // panel[w * 64 + c] for c < width from rows k of a row-major [num_k, *] matrix: column c is
  // rows[k][first_column + c]; columns <= c < width are zero. width is 32 or 64.
  void (*rows)(const void* const* rows, int64_t num_k, int64_t first_column, int columns, int width,
               uint32_t* panel);
  // panel[w * 64 + c] from columns rows of a row-major [*, K] matrix: column c is
  // rows[c][first_k ... first_k + num_k - 1]; columns <= c < 64 are zero.
  void (*transposed)(const void* const* rows, int columns, int64_t first_k, int64_t num_k,
                     uint32_t* panel);
  // out[c * out_pitch + w] = the words along k of column first_column + c, for c < columns: rows
  // of the transpose, ready to be the A of a product that contracts over rows (a weight gradient).
  void (*transpose)(const void* const* rows, int64_t num_k, int64_t first_column, int64_t columns,
                    uint32_t* out, int64_t out_pitch);
};

// Epilogues work on a tile that the product left in L1: element (r, c) at tile[r * 64 + c].
// T is the row type, f32 or bf16; row pointers are void for that reason.
struct Epilogue {
  // out_rows[r][c] = T(tile[r, c]).
  void (*store)(const float* tile, int rows, int columns, void* const* out_rows);
  // The same for all 64 columns, past the caches; out_rows must be 64-byte aligned. Results that
  // nobody reads soon then cost no line fetched first: a third of a bf16 weight gradient's time.
  void (*stream)(const float* tile, int rows, void* const* out_rows);
  // accumulators[r][c] += f32(T(weights[r] * tile[r, c])); weights may be null (all 1).
  void (*combine)(const float* tile, int rows, int columns, const float* weights,
                  float* const* accumulators);
  // out_rows[r][c] = T(weights[r] * tile[r, c]): the row that combine would add, on its own.
  void (*store_weighted)(const float* tile, int rows, int columns, const float* weights,
                         void* const* out_rows);
  // Tile columns 0..31 are gate, 32..63 up; columns <= 32. Writes gate and up rounded to T, and
  // hidden = T(activation(gate, up)) computed from the rounded values. gate_rows and up_rows may
  // be null (nothing saved).
  void (*activate)(Activation activation, const float* tile, int rows, int columns,
                   void* const* gate_rows, void* const* up_rows, void* const* hidden_rows);
  // Backward of activate. tile is d(loss)/d(hidden) before the routing weight. For each row:
  //   weight_grads[r] = sum over c of tile[r, c] * hidden[r, c]   (hidden recomputed, rounded to T)
  //   gate_grads, up_grads = T(weight * tile * d(hidden)/d(gate, up))
  //   weighted_hidden = T(weight * hidden)
  void (*activate_grad)(Activation activation, const float* tile, int rows, int columns,
                        const float* weights, const void* const* gate_rows,
                        const void* const* up_rows, void* const* gate_grads, void* const* up_grads,
                        void* const* weighted_hidden, float* weight_grads);
};

struct KernelTable {
  Isa isa;
  ProductFn product_f32;
  ProductFn product_bf16;
  ProductAheadFn product_bf16_ahead;
  Packer pack_f32_f32;
  Packer pack_f32_bf16;
  Packer pack_bf16_bf16;
  Epilogue epilogue_f32;
  Epilogue epilogue_bf16;
  // The product's inner loop without memory: the yardstick every benchmark divides by. Returns the
  // floating-point operations done; sink holds 16 floats, zero at first.
  double (*spin_f32)(int64_t iterations, float* sink);
  double (*spin_bf16)(int64_t iterations, float* sink);
  LossEpilogue loss;
  OptimizerKernels optimizer;
  Softmax softmax_f32;
  Softmax softmax_bf16;
  NormKernels norms[2][2];  // by the types of x and y: f32, bf16

  ProductFn product(DType dtype) const {
    return dtype == DType::kBF16 ? product_bf16 : product_f32;
  }
  // from bf16 to f32 does not exist: mixed operands are widened before they get here.
  const Packer& pack(DType from, DType to) const {
    if (to == DType::kF32) return pack_f32_f32;
    return from == DType::kF32 ? pack_f32_bf16 : pack_bf16_bf16;
  }
  const Epilogue& epilogue(DType dtype) const {
    return dtype == DType::kBF16 ? epilogue_bf16 : epilogue_f32;
  }
  const NormKernels& norm(DType x, DType y) const {
    return norms[x == DType::kBF16][y == DType::kBF16];
  }
  const Softmax& softmax(DType dtype) const {
    return dtype == DType::kBF16 ? softmax_bf16 : softmax_f32;
  }
};

// The table of an instruction set, or null when this CPU cannot run it or the build has none.
const KernelTable* FindKernels(Isa isa);

// The table every operation uses: the best one, or the one ANABRANCH_FORCE_ISA names. Chosen once
// per process, at the first call; never null.
const KernelTable& Kernels();

// Why ANABRANCH_FORCE_ISA was not obeyed; empty when it was, or is not set.
std::string ForcedIsaError();

// Makes earlier kStream stores of this thread visible to others; once per unit of work is enough.
void StreamFence();

}  // namespace anabranch::tile

#endif  // ANABRANCH_TILE_TILE_H_
