# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""One pairwise sum of the tree over tokens."""

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
