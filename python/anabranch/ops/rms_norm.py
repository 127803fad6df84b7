# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Root-mean-square normalisation, alone and with the residual addition before it, in one pass each."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops import reference, token_tree

_SERVED = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16))


def rms_norm(
    x: jax.Array, weight: jax.Array, epsilon: float = 1e-6, dtype: Any = None
) -> jax.Array:
    """Returns `weight * x / sqrt(mean(x**2) + epsilon)` over the last axis (arXiv 1910.07467).

    x [..., H] of any float type, weight [H]; computed in f32 (f64 where x or the weight is), returned
    in `dtype` (default x's). The weight's gradient is summed over rows as `anabranch.ops.token_tree`
    says; the bits depend on nothing else. Raises ValueError when the last axis of x is not that of
    the weight.
    """
    _validate(x, weight)
    dtype = jnp.dtype(dtype or x.dtype)
    if jnp.float64 in (x.dtype, weight.dtype):
        return reference.rms_norm(x, weight, epsilon).astype(dtype)
    with jax.named_scope("rms_norm"):
        leaves = token_tree.current().leaves
        rows, weight = _rows(x), weight.astype(jnp.float32)
        computed = _served(dtype)
        y = _norm(float(epsilon), computed, leaves, *_register.align(rows, weight))
        return y.reshape(x.shape).astype(dtype)


def add_rms_norm(
    x: jax.Array, branch: jax.Array, weight: jax.Array, epsilon: float = 1e-6
) -> tuple[jax.Array, jax.Array]:
    """Returns `(x + branch, rms_norm(x + branch, weight))`: a residual stream and what enters its next block.

    x and the sum [..., H] in x's type, branch and the normalised [..., H] in branch's; the sum is rounded
    to its type before it is normalised. Otherwise as `rms_norm`. Raises ValueError when shapes
    disagree.
    """
    _validate(x, weight)
    if branch.shape != x.shape:
        raise ValueError(f"add_rms_norm: x has shape {x.shape}, branch {branch.shape}; must agree")
    if jnp.float64 in (x.dtype, branch.dtype, weight.dtype):
        total = x + branch.astype(x.dtype)
        return total, reference.rms_norm(total, weight, epsilon).astype(branch.dtype)
    with jax.named_scope("add_rms_norm"):
        leaves = token_tree.current().leaves
        operands = _register.align(_rows(x), _rows(branch), weight.astype(jnp.float32))
        total, y = _add_norm(float(epsilon), leaves, *operands)
        return total.reshape(x.shape).astype(x.dtype), y.reshape(x.shape).astype(branch.dtype)


def _validate(x: jax.Array, weight: jax.Array) -> None:
    if weight.shape != x.shape[-1:] or not weight.size:
        raise ValueError(f"rms_norm: weight has shape {weight.shape}, x {x.shape}; must be [H]")


def _served(dtype: Any) -> Any:
    return dtype if dtype in _SERVED else jnp.dtype(jnp.float32)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1]).astype(_served(x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _norm(epsilon: float, dtype: Any, leaves: int, x: jax.Array, weight: jax.Array) -> jax.Array:
    return _norm_forward(epsilon, dtype, leaves, x, weight)[0]


def _norm_forward(
    epsilon: float, dtype: Any, leaves: int, x: jax.Array, weight: jax.Array
) -> tuple[jax.Array, Any]:
    del leaves  # of the backward pass
    results = (jax.ShapeDtypeStruct(x.shape, dtype), _per_row(x))
    y, inverse = _register.call("rms_norm", results, x, weight, epsilon=epsilon)
    return y, (x, weight, inverse)


def _norm_backward(epsilon: float, dtype: Any, leaves: int, kept: Any, y_grad: jax.Array) -> Any:
    del epsilon, dtype
    like = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in kept[:2]]
    return tuple(_register.call("rms_norm_grad", like, *kept, y_grad, num_leaves=leaves))


_norm.defvjp(_norm_forward, _norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _add_norm(
    epsilon: float, leaves: int, x: jax.Array, branch: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _add_norm_forward(epsilon, leaves, x, branch, weight)[0]


def _add_norm_forward(
    epsilon: float, leaves: int, x: jax.Array, branch: jax.Array, weight: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    del leaves  # of the backward pass
    like = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (x, branch)]
    total, y, inverse = _register.call(
        "add_rms_norm", (*like, _per_row(x)), x, branch, weight, epsilon=epsilon
    )
    return (total, y), (total, weight, inverse)


def _add_norm_backward(epsilon: float, leaves: int, kept: Any, grads: Any) -> Any:
    del epsilon
    total_grad, y_grad = grads
    like = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (total_grad, y_grad, kept[1])]
    return tuple(
        _register.call("add_rms_norm_grad", like, *kept, y_grad, total_grad, num_leaves=leaves)
    )


_add_norm.defvjp(_add_norm_forward, _add_norm_backward)


def _per_row(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
