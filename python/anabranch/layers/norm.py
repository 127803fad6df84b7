# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms_norm(
    x: jax.Array, weight: jax.Array, epsilon: float = 1e-6, dtype: jnp.dtype | None = None
) -> jax.Array:
    """Returns `weight * x / sqrt(mean(x**2) + epsilon)` over the last axis (arXiv 1910.07467).

    x [..., H] of any float type, weight [H]; computed in f32, returned in `dtype` (default x's).
    Raises ValueError when the last axis of x is not that of the weight.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: weight has shape {weight.shape}, x {x.shape}; must be [H]")
    with jax.named_scope("rms_norm"):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
        return (wide * scale * weight).astype(dtype or x.dtype)
