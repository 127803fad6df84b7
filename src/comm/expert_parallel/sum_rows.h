// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_COMM_EXPERT_PARALLEL_SUM_ROWS_H_
#define ANABRANCH_COMM_EXPERT_PARALLEL_SUM_ROWS_H_

#include <cstdint>

#include "base/cpu_features.h"

namespace anabranch::expert_parallel {

// y[0, columns) = 0 + rows[0] + rows[1] + ..., added in f32 in that order, rounded once. All tables
// give the same bits. With stream set, y is stored past the caches: it must then be aligned to 64
// bytes and be whole lines long; the caller fences.
using SumRows = void (*)(const void* const* rows, int64_t count, int64_t columns, bool stream,
                         void* y);
struct SumTable {
  SumRows bf16;
  SumRows f32;
};

SumTable FindSums(Isa isa);

namespace generic {
extern const SumTable kSums;
}
namespace avx2 {
extern const SumTable kSums;
}
namespace avx512 {
extern const SumTable kSums;
}

}  // namespace anabranch::expert_parallel

#endif  // ANABRANCH_COMM_EXPERT_PARALLEL_SUM_ROWS_H_
