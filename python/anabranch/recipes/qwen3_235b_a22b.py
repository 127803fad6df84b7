# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Qwen3-235B-A22B (arXiv 2505.09388)."""

from __future__ import annotations

import dataclasses

from anabranch.recipes import qwen3_30b_a3b
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `qwen3-235b-a22b`."""
    base = qwen3_30b_a3b.recipe().model
    model = dataclasses.replace(
        base,
        hidden_size=4096,
        num_layers=94,
        expert_width=1536,
        attention=dataclasses.replace(base.attention, num_heads=64),
    )
    return Recipe(
        name="qwen3-235b-a22b",
        description="Qwen3-235B-A22B, 235 billion parameters, 22 billion active.",
        model=model,
        train=TrainConfig(batch_size=1024, sequence_length=4096, learning_rate=3e-4),
    )
