# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2-Lite (arXiv 2405.04434)."""

from __future__ import annotations

from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.models.config import Config
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `deepseek-v2-lite`."""
    model = Config(
        vocab_size=102_400,
        hidden_size=2048,
        num_layers=27,
        num_dense_layers=1,
        dense_width=10_944,
        num_experts=64,
        topk=6,
        expert_width=1408,
        num_shared_experts=2,
        score_function="softmax",
        normalize=False,
        expert_bias=False,
        load_balancing_coeff=1e-3,
        attention=AttentionConfig(
            num_heads=16,
            kv_lora_rank=512,
            nope_head_size=128,
            rope_head_size=64,
            value_head_size=128,
        ),
        rotary=RotaryConfig(factor=40.0, mscale=0.707, mscale_all_dim=0.707),
        remat="full",
    )
    return Recipe(
        name="deepseek-v2-lite",
        description="DeepSeek-V2-Lite, 15.7 billion parameters, 2.4 billion active.",
        model=model,
        train=TrainConfig(batch_size=4608, sequence_length=4096, learning_rate=4.2e-4),
    )
