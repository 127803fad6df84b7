# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""How parameters begin: normal matrices, unit norms, zero biases, always f32."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

Shape = tuple[int, ...]

# Normal values are drawn in pieces of 16 MiB: one small program serves models of any size, and what
# the generator needs on the side stays as small.
_PIECE = 4 * 1024 * 1024


def initialise(key: jax.Array, shapes: Any, scale: float) -> Any:
    """Returns the tree `shapes` (of shape tuples) filled with new f32 parameters.

    Leaves whose name ends in "norm" are 1, those ending in "bias" 0, and all others independent
    normal values of standard deviation `scale`.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes, is_leaf=_is_shape)
    constants = [_constant(path) for path, _ in leaves]
    sizes = [math.prod(shape) for _, shape in leaves]
    drawn = sum(size for size, fill in zip(sizes, constants, strict=True) if fill is None)
    values = _normal(key, drawn, scale)
    filled, start = [], 0
    for (_, shape), size, fill in zip(leaves, sizes, constants, strict=True):
        if fill is None:
            filled.append(jax.lax.slice(values, (start,), (start + size,)).reshape(shape))
            start += size
        else:
            filled.append(jnp.full(shape, fill, jnp.float32))
    return jax.tree.unflatten(structure, filled)


def _normal(key: jax.Array, count: int, scale: float) -> jax.Array:
    pieces = -(-count // _PIECE)
    size = count if pieces <= 1 else _PIECE
    keys = jax.random.split(key, max(pieces, 1))
    values = jax.lax.map(lambda k: scale * jax.random.normal(k, (size,), jnp.float32), keys)
    return values.reshape(-1)


def _constant(path: Any) -> float | None:
    name = str(path[-1].key)
    return 1.0 if name.endswith("norm") else 0.0 if name.endswith("bias") else None


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple)
