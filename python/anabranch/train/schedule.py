# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules: linear warm-up, then cosine or warm-up-stable-decay (WSD)."""

from typing import TYPE_CHECKING

import optax

if TYPE_CHECKING:
    from anabranch.recipes.recipe import TrainConfig


def learning_rate(config: "TrainConfig") -> optax.Schedule:
    """Learning rate by number of applied optimizer steps, over the horizon `config.steps`.

    The horizon belongs to the recipe and not to `--steps`: a run that stops early and is resumed follows the same
    curve as one that never stopped. Past the horizon the rate stays at its minimum. The first step already has a
    rate above zero: step i of the warm-up takes (i + 1) / warmup_steps of the peak.

    "cosine" falls from the peak to `min_learning_rate_ratio` of it. "wsd" (Hu et al. 2024, MiniCPM) holds the
    peak and falls linearly over the last `decay_fraction` of the horizon.
    """
    peak = config.learning_rate
    floor = peak * config.min_learning_rate_ratio
    warmup = min(config.warmup_steps, config.steps)
    rest = max(config.steps - warmup, 1)
    if config.schedule == "cosine":
        main = optax.cosine_decay_schedule(peak, rest, alpha=config.min_learning_rate_ratio)
    elif config.schedule == "wsd":
        decay = min(max(round(config.steps * config.decay_fraction), 1), rest)
        main = optax.linear_schedule(peak, floor, decay, transition_begin=rest - decay)
    else:
        raise ValueError(f"train.schedule is {config.schedule!r}; it must be 'cosine' or 'wsd'")
    if warmup == 0:
        return main
    rise = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([rise, main], [warmup])
