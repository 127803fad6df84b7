// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "ops/muon/muon.h"  // IWYU pragma: export
