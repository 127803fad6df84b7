// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/adamw/adamw.h"  // IWYU pragma: export
