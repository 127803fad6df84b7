# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Layers: pure functions over trees of parameters."""

from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.layers.moe_config import MoEConfig

__all__ = ["AttentionConfig", "MoEConfig", "RotaryConfig"]
