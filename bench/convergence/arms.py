# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What is compared, on which model, and what has to come out."""

from __future__ import annotations

from anabranch import recipes
from anabranch.recipes import Recipe

BASE = "bf16"
# The share by which a recipe's loss may exceed that of bf16: arXiv 2412.19437 publishes 0.25 % for FP8 blocks; a small
# model loses more to NVFP4 than the 1 to 1.5 % that arXiv 2509.25149 reports at 12 billion parameters.
BARS = {"mxfp8": 0.0025, "fp8_block": 0.0025, "nvfp4": 0.025}
# For these two standard deviations over bf16's seeds are allowed where that is more.
WITHIN_SEED_NOISE = ("mxfp8", "fp8_block")
# What each recipe leaves out one at a time: negative controls.
CONTROLS = {"mxfp8": ("mxfp8+floor",), "nvfp4": ("nvfp4-sr", "nvfp4-rht", "nvfp4-2d")}
ARMS = (BASE, *BARS, *CONTROLS["mxfp8"], *CONTROLS["nvfp4"])
SEEDS = (0, 1, 2)

# `default` made small enough that every arm and seed fits one core and half an hour: a million active
# parameters, 1,024 tokens a step. Widths stay multiples of 128, the longest block.
SETTINGS = (
    "model.hidden_size=128", "model.num_layers=3", "model.dense_width=384", "model.num_experts=16",
    "model.topk=4", "model.expert_width=128", "model.attention.num_heads=2", "train.batch_size=4",
    "train.sequence_length=256", "train.steps=200",
)  # fmt: skip


def recipe(arm: str, seed: int, settings: tuple[str, ...] = ()) -> Recipe:
    """The training run of one arm; `settings` go on top of SETTINGS."""
    chosen = (*SETTINGS, *settings, f"precision.recipe={arm}", f"train.seed={seed}")
    return recipes.override(recipes.get("default"), chosen)
