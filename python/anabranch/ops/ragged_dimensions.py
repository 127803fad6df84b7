# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Maps every form of a ragged product onto the three grouped products.

Dimensions are put in order and flattened: [batch, outer, rows, contracted] for a free ragged
dimension, [batch, outer, rows, columns] for a contracted one. Dimensions inside the ragged one
multiply the group sizes; batch and outer dimensions are looped over.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops.grouped_gemm import (
    SERVED_DTYPES,
    grouped_gemm,
    grouped_gemm_dgrad,
    grouped_gemm_wgrad,
)


def serves(lhs: Any, rhs: Any, result: Any) -> bool:
    """Whether operands and result (arrays or shapes) have dtypes that are computed here."""
    return all(array.dtype in SERVED_DTYPES for array in (lhs, rhs, result))


# One dispatch per eager call; an engine error then surfaces as it does under jit.
@functools.partial(jax.jit, static_argnames=("numbers", "dtype"), inline=True)
def ragged_product(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    numbers: jax.lax.RaggedDotDimensionNumbers,
    dtype: Any,
) -> jax.Array:
    """The ragged product that ``numbers`` states, in ``dtype``.

    Args:
      lhs: array that ``serves`` accepts; see ``ragged_dot_general`` for the forms.
      rhs: likewise.
      group_sizes: of an integer type, [g] or with the outer dimensions in front.
      numbers: dimension numbers that fit the shapes.
      dtype: of the result.
    """
    lhs, rhs, group_sizes = _register.align(lhs, rhs, group_sizes)
    (lhs_contracting, _), (lhs_batch, _) = numbers.dot_dimension_numbers
    ragged = numbers.lhs_ragged_dimensions[0]
    if ragged in lhs_batch:
        return _ragged_batch(lhs, rhs, numbers, dtype)
    sizes = _as_int32(group_sizes)
    if ragged in lhs_contracting:
        return _ragged_contracting(lhs, rhs, sizes, numbers, dtype)
    return _ragged_free(lhs, rhs, sizes, numbers, dtype)


def _as_int32(sizes: jax.Array) -> jax.Array:
    """Sizes as the engine takes them; what int32 cannot hold stays too large to be accepted."""
    if sizes.dtype.itemsize >= 4 and sizes.dtype != jnp.int32:
        limits, own = jnp.iinfo(jnp.int32), jnp.iinfo(sizes.dtype)
        sizes = jnp.clip(sizes, max(limits.min, own.min), min(limits.max, own.max))
    return sizes.astype(jnp.int32)


def _ragged_free(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, numbers: Any, dtype: Any
) -> jax.Array:
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    group = numbers.rhs_group_dimensions[0]
    kept = _others(lhs.ndim, lhs_batch, lhs_contracting)
    columns = _others(rhs.ndim, rhs_batch, rhs_contracting, [group])
    outer, inner = _split(kept, numbers.lhs_ragged_dimensions[0])
    batch, prefix = _sizes(lhs, lhs_batch), _sizes(lhs, outer)
    rows = _arrange(lhs, lhs_batch, outer, kept[len(outer) :], lhs_contracting)
    # A matrix that lies transposed is read as it lies.
    if columns and rhs_contracting and max(columns) < min(rhs_contracting):
        w = _arrange(rhs, rhs_batch, [group], columns, rhs_contracting)
        product = grouped_gemm_dgrad
    else:
        w = _arrange(rhs, rhs_batch, [group], rhs_contracting, columns)
        product = grouped_gemm
    sizes = _spread(sizes, batch + prefix) * math.prod(_sizes(lhs, inner))
    sizes = sizes.reshape(math.prod(batch), math.prod(prefix), sizes.shape[-1])
    one = _over_leading(lambda x, w, s: product(x, w, s, dtype), (0, None, 0), math.prod(prefix))
    y = _over_leading(one, (0, 0, 0), math.prod(batch))(rows, w, sizes)
    return y.reshape(batch + _sizes(lhs, kept) + _sizes(rhs, columns))


def _ragged_contracting(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, numbers: Any, dtype: Any
) -> jax.Array:
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    kept = _others(lhs.ndim, lhs_batch, lhs_contracting)
    columns = _others(rhs.ndim, rhs_batch, rhs_contracting)
    outer, inner = _split(lhs_contracting, numbers.lhs_ragged_dimensions[0])
    batch, prefix = _sizes(lhs, lhs_batch), _sizes(lhs, outer)
    num_outer = len(outer)
    x = _arrange(lhs, lhs_batch, outer, lhs_contracting[num_outer:], kept)
    dy = _arrange(rhs, rhs_batch, rhs_contracting[:num_outer], rhs_contracting[num_outer:], columns)
    sizes = _spread(sizes, batch + prefix) * math.prod(_sizes(lhs, inner))
    sizes = sizes.reshape(math.prod(batch), math.prod(prefix), sizes.shape[-1])

    def one(x: jax.Array, dy: jax.Array, sizes: jax.Array) -> jax.Array:
        if not outer:
            return grouped_gemm_wgrad(x[0], dy[0], sizes[0], dtype)
        parts = _over_leading(
            lambda x, dy, s: grouped_gemm_wgrad(x, dy, s, jnp.float32), (0, 0, 0), x.shape[0]
        )
        return parts(x, dy, sizes).sum(axis=0).astype(dtype)

    dw = _over_leading(one, (0, 0, 0), math.prod(batch))(x, dy, sizes)  # [b, g, m, n]
    dw = jnp.moveaxis(dw, 1, 0)
    return dw.reshape(dw.shape[:1] + batch + _sizes(lhs, kept) + _sizes(rhs, columns))


def _ragged_batch(lhs: jax.Array, rhs: jax.Array, numbers: Any, dtype: Any) -> jax.Array:
    """A batched product: every batch element is a group of as many rows as lhs has."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    kept = _others(lhs.ndim, lhs_batch, lhs_contracting)
    columns = _others(rhs.ndim, rhs_batch, rhs_contracting)
    batch = _sizes(lhs, lhs_batch)
    x = _arrange(lhs, list(lhs_batch) + kept, lhs_contracting)
    w = _arrange(rhs, rhs_batch, rhs_contracting, columns)
    sizes = jnp.full(math.prod(batch), math.prod(_sizes(lhs, kept)), jnp.int32)
    y = grouped_gemm(x, w, sizes, dtype)
    return y.reshape(batch + _sizes(lhs, kept) + _sizes(rhs, columns))


def _over_leading(function: Callable, axes: tuple[int | None, ...], size: int) -> Callable:
    """``function`` mapped over leading axes of ``size``; called once when there is one element."""
    if size != 1:
        return jax.vmap(function, in_axes=axes)

    def once(*args: jax.Array) -> jax.Array:
        return function(*(a if axis is None else a[0] for a, axis in zip(args, axes, strict=True)))[
            None
        ]

    return once


def _others(rank: int, *used: Sequence[int]) -> list[int]:
    return [axis for axis in range(rank) if not any(axis in axes for axes in used)]


def _split(axes: Sequence[int], ragged: int) -> tuple[list[int], list[int]]:
    """The axes outside (before) and inside (after) the ragged one."""
    at = list(axes).index(ragged)
    return list(axes[:at]), list(axes[at + 1 :])


def _sizes(array: jax.Array, axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(array.shape[axis] for axis in axes)


def _arrange(array: jax.Array, *parts: Sequence[int]) -> jax.Array:
    """Transposes and flattens so that each part's axes become one axis."""
    order = [axis for part in parts for axis in part]
    shape = tuple(math.prod(_sizes(array, part)) for part in parts)
    return array.transpose(order).reshape(shape)


def _spread(sizes: jax.Array, outer: tuple[int, ...]) -> jax.Array:
    return jnp.broadcast_to(sizes, outer + sizes.shape[-1:]) if sizes.ndim == 1 else sizes
