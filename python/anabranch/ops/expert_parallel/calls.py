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


def plan_words(ranks: int, num_experts: int, slots: int, local_experts: int) -> int:
    """Length of a plan of ``slots`` slots, as ``PlanWords`` of the engine."""
    header = 16
    return header + ranks * num_experts + 3 * slots + local_experts + ranks * (local_experts + 1)


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
    ranks, capacity, alignment, overflow, processes = options
    words, sizes, offsets, report = _collective.call(
        "expert_parallel_prepare",
        [_shaped(*shape) for shape in shapes],
        Place(index, ranks, processes),
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
    processes: bool
    domain_size: int = 0
    wire: str = "bf16"


class Wave(NamedTuple):
    """One of ``count`` waves, and the rows that its buffer has room for."""

    index: int
    count: int
    capacity: int


class Load(NamedTuple):
    """Rows [T, hidden] of ``dtype`` as they travel: themselves, or u8 slots of the mxfp8 wire."""

    array: jax.Array
    hidden: int
    dtype: Any


def load(options: Options, x: jax.Array) -> Load:
    """Rows x as the wire wants them: encoded once, however many ranks and waves they go to."""
    tokens, hidden = x.shape
    if options.wire == "bf16":
        return Load(x, hidden, x.dtype)
    # A scale of one byte for each 32 codes, as WireBytes of the engine.
    slots = _shaped(tokens, hidden + -(-hidden // 32), dtype=jnp.uint8)
    return Load(_register.call("encode_rows", slots, x), hidden, x.dtype)


def send(
    options: Options,
    wave: Wave,
    index: jax.Array,
    words: jax.Array,
    loaded: Load,
    weights: jax.Array,
) -> list[jax.Array]:
    """The bare dispatch of one wave: from tokens' rows and weights, rows and row_weights."""
    travelling = loaded.array
    results = (
        _shaped(wave.capacity, travelling.shape[1], dtype=travelling.dtype),
        _shaped(wave.capacity if options.weighted else 0, dtype=jnp.float32),
    )
    of_wave = {"wave": wave.index, "waves": wave.count}
    rows, row_weights = _collective.call(
        "expert_parallel_dispatch",
        results,
        Place(index, options.ranks, options.processes),
        words,
        travelling,
        weights,
        weighted=options.weighted,
        **of_wave,
    )
    if options.wire != "bf16":
        decoded = _shaped(wave.capacity, loaded.hidden, dtype=loaded.dtype)
        rows = _register.call("expert_parallel_decode", decoded, words, rows, **of_wave)
    return [rows, row_weights]


def fetch(
    options: Options, index: jax.Array, words: jax.Array, *arrays: jax.Array
) -> list[jax.Array]:
    """The bare combine: from rows and row_weights of each wave in turn, y and weights."""
    weights_shape = (options.tokens, options.topk) if options.weighted else (0,)
    results = (
        _shaped(options.tokens, arrays[0].shape[1], dtype=arrays[0].dtype),
        _shaped(*weights_shape, dtype=jnp.float32),
    )
    where = Place(index, options.ranks, options.processes)
    return _collective.call(
        "expert_parallel_combine",
        results,
        where,
        words,
        *arrays,
        weighted=options.weighted,
        domain_size=options.domain_size,
    )


# Dispatch and combine are each other's transposes, weights included; the rounding of a wire counts as
# the identity.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def dispatch(
    options: Options, index: jax.Array, words: jax.Array, x: jax.Array, weights: jax.Array
) -> list[jax.Array]:
    """Rows and row_weights."""
    return send(options, Wave(0, 1, options.capacity), index, words, load(options, x), weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def combine(options: Options, index: jax.Array, *operands: jax.Array) -> list[jax.Array]:
    """From words, rows and row_weights: y and weights."""
    return fetch(options, index, *operands)


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
