# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The optimizers of `train.optimizer` on f32 master weights: AdamW, and Muon for matrices."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from anabranch import models
from anabranch.ops.adamw import AdamW
from anabranch.ops.adamw import adamw as engine_adamw
from anabranch.ops.muon import muon as engine_muon
from anabranch.train import schedule

if TYPE_CHECKING:
    from anabranch.recipes.recipe import TrainConfig


def make(config: "TrainConfig") -> AdamW:
    """The optimizer that `config.optimizer` names; both have the functions and the state of `AdamW`."""
    return muon(config) if config.optimizer == "muon" else adamw(config)


def muon(config: "TrainConfig") -> AdamW:
    """Muon for matrices between embedding and output, each expert's for itself; `adamw` for the rest."""
    return engine_muon(
        schedule.learning_rate(config),
        adamw(config),
        is_hidden_matrix,
        weight_decay=config.weight_decay,
    )


def is_hidden_matrix(path: Any, leaf: Any) -> bool:
    """True for a parameter's key path and value where Muon applies."""
    return leaf.ndim >= 2 and str(getattr(path[-1], "key", path[-1])) not in ("embedding", "head")


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
