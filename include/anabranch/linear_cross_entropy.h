// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy/linear_cross_entropy.h"  // IWYU pragma: export
