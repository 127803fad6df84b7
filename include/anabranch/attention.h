// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"  // IWYU pragma: export
