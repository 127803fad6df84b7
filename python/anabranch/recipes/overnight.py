# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A night on two cores: tens of millions of active parameters."""

from __future__ import annotations

from anabranch.layers.config import AttentionConfig
from anabranch.models.config import Config
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `overnight`."""
    model = Config(
        vocab_size=512,
        hidden_size=512,
        num_layers=8,
        num_dense_layers=1,
        dense_width=1536,
        num_experts=64,
        topk=8,
        expert_width=256,
        num_shared_experts=1,
        scaling_factor=2.5,
        expert_bias_rate=0.005,
        attention=AttentionConfig(
            num_heads=8,
            q_lora_rank=256,
            kv_lora_rank=128,
            nope_head_size=64,
            rope_head_size=32,
            value_head_size=64,
        ),
    )
    train = TrainConfig(
        batch_size=16,
        sequence_length=512,
        steps=4000,
        learning_rate=1e-3,
        warmup_steps=200,
        schedule="wsd",
        decay_fraction=0.2,
        checkpoint_every=100,
        log_every=10,
        eval_every=200,
        eval_batches=16,
        tensorboard=True,
    )
    return Recipe(
        name="overnight",
        description="The bench-190m shape on bytes for a night: about 33 million bytes read.",
        model=model,
        train=train,
    )
