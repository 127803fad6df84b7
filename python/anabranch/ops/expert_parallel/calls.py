# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The collective calls of expert parallelism, and their gradients."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from anabranch import _collective, _register
from anabranch._collective import Place


class ExpertParallelPlan(NamedTuple):
    """Where each routed slot's row lies; values alone, so it can be saved and moved.

    A rank's rows are ordered by (expert, source rank, token). L is the largest number of experts
    that one rank owns; groups past a rank's own experts are empty.

    Attributes:
      words: i32, the whole plan, checksummed; read by ``dispatch`` and ``combine``.
      group_sizes: i32 [L], rows of each of this rank's experts that carry a token.
      group_offsets: i32 [L+1], first row of each of them; the last is the number of rows in use,
        padding to the alignment included.
      needed: i32 scalar, rows that the fullest rank needs.
      dropped: i32 scalar, slots of this rank's tokens that were left out; 0 unless
        ``overflow="drop"``.
      place: i32 [2], the rank and its group.
    """

    words: jax.Array
    group_sizes: jax.Array
    group_offsets: jax.Array
    needed: jax.Array
    dropped: jax.Array
    place: jax.Array


def worst_capacity(tokens: int, topk: int, local_experts: int, alignment: int) -> int:
    """Rows, padding included, that ``tokens`` tokens can at most send to ``local_experts`` experts."""
    rows = tokens * min(topk, local_experts)
    blocks = rows if rows <= local_experts else local_experts + (rows - local_experts) // alignment
    return alignment * min(blocks, local_experts * -(-tokens // alignment))


def _shaped(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


# Integers only: the rule says to ``jax.grad`` that there is nothing to differentiate.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def prepare(
    options: tuple[int, ...], shapes: tuple[Any, ...], index: jax.Array, *operands: jax.Array
) -> tuple[jax.Array, ...]:
    """From experts and the table of owners: a plan's fields."""
    ranks, capacity, alignment, overflow = options
    words, sizes, offsets, report = _collective.call(
        "expert_parallel_prepare",
        [_shaped(*shape) for shape in shapes],
        Place(index, ranks),
        *operands,
        capacity=capacity,
        alignment=alignment,
        overflow=overflow,
    )
    return words, sizes, offsets, report[1], report[2], _register.vary_as(index, words)


prepare.defvjp(
    lambda options, shapes, *operands: (prepare(options, shapes, *operands), None),
    lambda options, shapes, saved, cotangents: (None, None, None),
)


class Options(NamedTuple):
    """What a call needs to know beside its arrays; the same on every rank."""

    ranks: int
    tokens: int
    topk: int
    capacity: int
    weighted: bool


# Dispatch and combine are each other's transposes, weights included.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatch(options: Options, index: jax.Array, *operands: jax.Array) -> list[jax.Array]:
    """From words, x and weights: rows and row_weights."""
    words, x, weights = operands
    results = (
        _shaped(options.capacity, x.shape[1], dtype=x.dtype),
        _shaped(options.capacity if options.weighted else 0, dtype=jnp.float32),
    )
    where = Place(index, options.ranks)
    return _collective.call(
        "expert_parallel_dispatch", results, where, words, x, weights, weighted=options.weighted
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def combine(options: Options, index: jax.Array, *operands: jax.Array) -> list[jax.Array]:
    """From words, rows and row_weights: y and weights."""
    words, rows, row_weights = operands
    weights_shape = (options.tokens, options.topk) if options.weighted else (0,)
    results = (
        _shaped(options.tokens, rows.shape[1], dtype=rows.dtype),
        _shaped(*weights_shape, dtype=jnp.float32),
    )
    where = Place(index, options.ranks)
    return _collective.call(
        "expert_parallel_combine",
        results,
        where,
        words,
        rows,
        row_weights,
        weighted=options.weighted,
    )


dispatch.defvjp(
    lambda options, index, words, *arrays: (
        dispatch(options, index, words, *arrays),
        (index, words),
    ),
    lambda options, saved, gradients: (None, None, *combine(options, *saved, *gradients)),
)
combine.defvjp(
    lambda options, index, words, *arrays: (
        combine(options, index, words, *arrays),
        (index, words),
    ),
    lambda options, saved, gradients: (None, None, *dispatch(options, *saved, *gradients)),
)
