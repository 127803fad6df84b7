# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""AdamW on f32 master weights (Loshchilov & Hutter 2019), with the settings of DeepSeek-V3's report."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from anabranch import models
from anabranch.ops.adamw import AdamW
from anabranch.ops.adamw import adamw as engine_adamw
from anabranch.train import schedule

if TYPE_CHECKING:
    from anabranch.recipes.recipe import TrainConfig


def adamw(config: "TrainConfig") -> AdamW:
    """AdamW with the recipe's schedule; decay only where `models.is_decayed` says so; moments f32.

    Clipping is not part of it: the training step clips by the norm it reports, see `clip_factor`.
    """
    return engine_adamw(
        schedule.learning_rate(config),
        beta1=config.beta1,
        beta2=config.beta2,
        epsilon=config.epsilon,
        weight_decay=config.weight_decay,
        mask=lambda params: jax.tree_util.tree_map_with_path(models.is_decayed, params),
    )


def applied_steps(opt_state: Any) -> jax.Array:
    """Number of optimizer steps that were applied (i32 scalar): skipped steps do not count."""
    return opt_state[0].count


def clip_factor(norm: jax.Array, limit: float) -> jax.Array:
    """Factor (f32) that brings gradients to a global norm of at most `limit`; 1 when `limit` is 0."""
    if limit <= 0:
        return jnp.float32(1.0)
    return jnp.minimum(1.0, limit / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
