# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The shape that training-step speed is measured on (docs/performance.md)."""

from __future__ import annotations

import dataclasses

from anabranch.recipes import overnight
from anabranch.recipes.recipe import Recipe, TrainConfig


def recipe() -> Recipe:
    """Returns the recipe `bench-190m`: 2,048 tokens per step, vocabulary 2,048."""
    return Recipe(
        name="bench-190m",
        description="About 190 million parameters: the yardstick of training-step speed.",
        model=dataclasses.replace(overnight.recipe().model, vocab_size=2048),
        train=TrainConfig(batch_size=4, sequence_length=512, steps=20, warmup_steps=5),
    )
