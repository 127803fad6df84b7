# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Layers: pure functions over trees of parameters."""

from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.layers.dense_ffn import dense_ffn, dense_ffn_init
from anabranch.layers.gqa import gqa, gqa_init
from anabranch.layers.mla import mla, mla_init
from anabranch.layers.moe import MoEAux, moe, moe_init, moe_with_aux
from anabranch.layers.moe_config import MoEConfig
from anabranch.layers.norm import rms_norm
from anabranch.layers.rotary import apply_rotary, rotary_table, softmax_scale

__all__ = [
    "AttentionConfig",
    "MoEAux",
    "MoEConfig",
    "RotaryConfig",
    "apply_rotary",
    "dense_ffn",
    "dense_ffn_init",
    "gqa",
    "gqa_init",
    "mla",
    "mla_init",
    "moe",
    "moe_init",
    "moe_with_aux",
    "rms_norm",
    "rotary_table",
    "softmax_scale",
]
