# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Pairwise sums of the tree over tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from anabranch import _register


@jax.custom_jvp
def tree_add(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns a + b, f32 of one shape, subnormal numbers included; XLA on CPU flushes those to zero.

    Raises ValueError when shapes or dtypes are others.
    """
    if a.shape != b.shape or a.dtype != jnp.float32 or b.dtype != jnp.float32:
        text = f"a {a.dtype}{[*a.shape]}, b {b.dtype}{[*b.shape]}"
        raise ValueError(f"tree_add: {text}; must be float32 of one shape")
    flat = (a.reshape(-1), b.reshape(-1))
    result = jax.ShapeDtypeStruct(flat[0].shape, jnp.float32)
    return _register.call("tree_add", result, *flat, aliases={0: 0}).reshape(a.shape)


@tree_add.defjvp
def _tree_add_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    return tree_add(*primals), tangents[0] + tangents[1]


def tree_sum(parts: jax.Array) -> jax.Array:
    """The sum of n >= 1 parts, f32 [n, ...] -> [...], in halves; of an odd number the first is the larger."""
    count = parts.shape[0]
    if count == 1:
        return parts[0]
    half = count - count // 2
    return tree_add(tree_sum(parts[:half]), tree_sum(parts[half:]))
