# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation: the operations of `anabranch.ops.rms_norm`."""

from __future__ import annotations

from anabranch.ops.rms_norm import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
