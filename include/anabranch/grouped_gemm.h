// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/grouped_gemm/grouped_gemm.h"  // IWYU pragma: export
