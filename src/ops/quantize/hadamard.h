// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#ifndef ANABRANCH_OPS_QUANTIZE_HADAMARD_H_
#define ANABRANCH_OPS_QUANTIZE_HADAMARD_H_

#include <cstdint>

namespace anabranch::quantize {

// The signs that Transformer Engine fixes for its 16x16 random Hadamard transform.
inline constexpr int64_t kHadamardRows = 16;
inline constexpr float kHadamardSigns[kHadamardRows] = {1,  1,  1,  -1, 1,  -1, -1, -1,
                                                        -1, -1, -1, 1,  -1, 1,  -1, -1};

}  // namespace anabranch::quantize

#endif  // ANABRANCH_OPS_QUANTIZE_HADAMARD_H_
