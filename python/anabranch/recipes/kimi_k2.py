# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Kimi K2 (arXiv 2507.20534): DeepSeek-V3's block with more experts and fewer heads."""

from __future__ import annotations

import dataclasses

from anabranch.layers.config import RotaryConfig
from anabranch.recipes import deepseek_v3_671b
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `kimi-k2`."""
    base = deepseek_v3_671b.recipe().model
    model = dataclasses.replace(
        base,
        vocab_size=163_840,
        num_dense_layers=1,
        num_experts=384,
        num_groups=1,
        group_topk=1,
        scaling_factor=2.827,
        attention=dataclasses.replace(base.attention, num_heads=64),
        rotary=RotaryConfig(theta=50_000.0, factor=32.0, beta_fast=1.0, beta_slow=1.0),
    )
    return Recipe(
        name="kimi-k2",
        description="Kimi K2, one trillion parameters, 32 billion active.",
        model=model,
        train=TrainConfig(batch_size=16_384, sequence_length=4096, learning_rate=2e-4),
    )
