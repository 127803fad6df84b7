# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Cutting and joining the columns of arrays without arithmetic, in either direction of a gradient.

XLA's CPU compiler moves bf16 through f32 in a loop of scalars; the same bits as integers it copies.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def cut(x: jax.Array, at: int) -> tuple[jax.Array, jax.Array]:
    """Returns columns `[..., :at]` and `[..., at:]` of x [..., D], of any floating type."""
    bits = _bits(x)
    return _floats(bits[..., :at], x.dtype), _floats(bits[..., at:], x.dtype)


def join(left: jax.Array, right: jax.Array) -> jax.Array:
    """Returns [..., D + E] of left [..., D] and right [..., E], of one floating type."""
    return _join(left.shape[-1], left, right)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _join(at: int, left: jax.Array, right: jax.Array) -> jax.Array:
    del at  # of the gradient
    bits = jnp.concatenate([_bits(left), _bits(right)], axis=-1)
    return _floats(bits, left.dtype)


def _bits(x: jax.Array) -> jax.Array:
    narrow = x.dtype == jnp.bfloat16
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if narrow else x


def _floats(bits: jax.Array, dtype: Any) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, dtype) if dtype == jnp.bfloat16 else bits


cut.defvjp(lambda x, at: (cut(x, at), None), lambda at, _, grads: (join(*grads),))
_join.defvjp(
    lambda at, left, right: (_join(at, left, right), None),
    lambda at, _, grad: cut(grad, at),
)
