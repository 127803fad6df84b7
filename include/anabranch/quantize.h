// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/quantize/quantize.h"  // IWYU pragma: export
