# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""OLMoE-1B-7B (arXiv 2409.02060)."""

from __future__ import annotations

from anabranch.layers.config import AttentionConfig
from anabranch.models.config import Config
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `olmoe-1b-7b`."""
    model = Config(
        vocab_size=50_304,
        hidden_size=2048,
        num_layers=16,
        num_dense_layers=0,
        num_experts=64,
        topk=8,
        expert_width=1024,
        num_shared_experts=0,
        score_function="softmax",
        normalize=False,
        expert_bias=False,
        load_balancing_coeff=0.01,
        router_z_coeff=1e-3,
        attention=AttentionConfig(
            kind="gqa", num_heads=16, num_kv_heads=16, head_size=128, qk_norm="full"
        ),
        norm_epsilon=1e-5,
        remat="full",
    )
    return Recipe(
        name="olmoe-1b-7b",
        description="OLMoE-1B-7B, 6.9 billion parameters, 1.3 billion active.",
        model=model,
        train=TrainConfig(batch_size=1024, sequence_length=4096, learning_rate=4e-4),
    )
