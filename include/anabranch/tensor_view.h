// Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
#include "base/tensor_view.h"  // IWYU pragma: export
