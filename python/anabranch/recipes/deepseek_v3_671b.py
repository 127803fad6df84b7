# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 (arXiv 2412.19437), without the multi-token prediction layer."""

from __future__ import annotations

from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.models.config import Config
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `deepseek-v3-671b`."""
    model = Config(
        vocab_size=129_280,
        hidden_size=7168,
        num_layers=61,
        num_dense_layers=3,
        dense_width=18_432,
        num_experts=256,
        topk=8,
        expert_width=2048,
        num_shared_experts=1,
        num_groups=8,
        group_topk=4,
        scaling_factor=2.5,
        attention=AttentionConfig(
            num_heads=128,
            q_lora_rank=1536,
            kv_lora_rank=512,
            nope_head_size=128,
            rope_head_size=64,
            value_head_size=128,
        ),
        rotary=RotaryConfig(factor=40.0),
        remat="full",
    )
    return Recipe(
        name="deepseek-v3-671b",
        description="DeepSeek-V3, 671 billion parameters, 37 billion active.",
        model=model,
        train=TrainConfig(batch_size=15_360, sequence_length=4096, learning_rate=2.2e-4),
    )
