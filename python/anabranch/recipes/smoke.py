# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The smallest complete model: a few seconds, for tests and a first look."""

from __future__ import annotations

from anabranch.layers.config import AttentionConfig
from anabranch.models.config import Config
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `smoke`."""
    model = Config(
        vocab_size=512,
        hidden_size=64,
        num_layers=2,
        num_dense_layers=1,
        dense_width=128,
        num_experts=8,
        topk=2,
        expert_width=32,
        num_shared_experts=1,
        scaling_factor=1.5,
        expert_bias_rate=0.02,
        attention=AttentionConfig(
            num_heads=2,
            q_lora_rank=32,
            kv_lora_rank=32,
            nope_head_size=16,
            rope_head_size=16,
            value_head_size=16,
        ),
    )
    train = TrainConfig(
        batch_size=8,
        sequence_length=64,
        steps=20,
        learning_rate=3e-3,
        warmup_steps=4,
        checkpoint_every=10,
        eval_every=10,
        eval_batches=2,
    )
    return Recipe(
        name="smoke",
        description="Two layers and eight experts: seconds, to see that everything works.",
        model=model,
        train=train,
    )
