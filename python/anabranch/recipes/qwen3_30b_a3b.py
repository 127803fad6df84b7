# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Qwen3-30B-A3B (arXiv 2505.09388)."""

from __future__ import annotations

from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.models.config import Config
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `qwen3-30b-a3b`."""
    model = Config(
        vocab_size=151_936,
        hidden_size=2048,
        num_layers=48,
        num_dense_layers=0,
        num_experts=128,
        topk=8,
        expert_width=768,
        num_shared_experts=0,
        score_function="softmax",
        normalize=True,
        expert_bias=False,
        load_balancing_coeff=1e-3,
        attention=AttentionConfig(
            kind="gqa", num_heads=32, num_kv_heads=4, head_size=128, qk_norm="head"
        ),
        rotary=RotaryConfig(theta=1e6),
        remat="full",
    )
    return Recipe(
        name="qwen3-30b-a3b",
        description="Qwen3-30B-A3B, 30.5 billion parameters, 3.3 billion active.",
        model=model,
        train=TrainConfig(batch_size=1024, sequence_length=4096, learning_rate=3e-4),
    )
