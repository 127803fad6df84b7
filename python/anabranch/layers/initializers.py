# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""How parameters begin: normal weights and unit norms, always f32."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def normal_tree(
    key: jax.Array, shapes: dict[str, tuple[int, ...]], scale: float
) -> dict[str, jax.Array]:
    """Returns `scale`-wide normal f32 arrays of `shapes`, each from its own key."""
    keys = jax.random.split(key, max(len(shapes), 1))
    return {
        name: scale * jax.random.normal(part, shape, jnp.float32)
        for part, (name, shape) in zip(keys, shapes.items(), strict=False)
    }


def ones(size: int) -> jax.Array:
    """Returns the weight of a norm, f32 [size]."""
    return jnp.ones((size,), jnp.float32)
