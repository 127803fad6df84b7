# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Mixtral 8x7B (arXiv 2401.04088)."""

from __future__ import annotations

from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.models.config import Config
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `mixtral-8x7b`."""
    model = Config(
        vocab_size=32_000,
        hidden_size=4096,
        num_layers=32,
        num_dense_layers=0,
        num_experts=8,
        topk=2,
        expert_width=14_336,
        num_shared_experts=0,
        score_function="softmax",
        normalize=True,
        expert_bias=False,
        load_balancing_coeff=0.02,
        attention=AttentionConfig(kind="gqa", num_heads=32, num_kv_heads=8, head_size=128),
        rotary=RotaryConfig(theta=1e6),
        norm_epsilon=1e-5,
        remat="full",
    )
    return Recipe(
        name="mixtral-8x7b",
        description="Mixtral 8x7B, 46.7 billion parameters, 12.9 billion active.",
        model=model,
        train=TrainConfig(batch_size=1024, sequence_length=4096, learning_rate=3e-4),
    )
