# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Tokens in parts, one after the other, so that rows fit a bound whatever the routing."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import _collective, _register
from anabranch.ops.expert_parallel.group import ExpertParallel
from anabranch.ops.ragged_plan import ragged_plan

# serve(group, x, experts, weights, *matrices) -> y: a layer whose rows all fit the group's capacity.
Serve = Callable[..., jax.Array]


def in_parts(
    expert_parallel: ExpertParallel,
    serve: Serve,
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    *matrices: jax.Array,
) -> jax.Array:
    """``serve`` on as few runs of consecutive tokens as the capacity allows; every token is served.

    All ranks cut at the same tokens, at borders of ``chunks`` equal pieces. y and the gradients of x
    and ``weights`` have the bits of one run over all tokens. Gradients of the matrices are sums over
    the parts in f32. The backward pass computes each part anew: no rows outlive their part.
    """
    group = group_of_chunk(expert_parallel, x.shape[0])
    part, count = cut(expert_parallel, group, experts)
    # Partial sums are f32 whatever the weights are; rounding f32 copies of them changes nothing.
    wide = tuple(matrix.astype(jnp.float32) for matrix in matrices)
    floats = _register.align(x, weights, *wide, experts)[:-1]
    return _in_parts(functools.partial(serve, group), floats, (experts, part, count))


def group_of_chunk(expert_parallel: ExpertParallel, tokens: int) -> ExpertParallel:
    """The group that serves one of ``chunks`` equal runs of ``tokens`` tokens, all of it at once.

    ValueError when ``capacity`` does not suffice for such a run under every routing.
    """
    ranks, chunks = jax.lax.axis_size(expert_parallel.axis_name), expert_parallel.chunks
    size = -(-tokens // chunks)
    worst = expert_parallel.worst_capacity(size, ranks)
    given = expert_parallel.capacity
    capacity = worst if given == "worst" else int(given)
    if capacity < worst:
        raise ValueError(
            f"ExpertParallel: capacity={capacity} rows, but {size} tokens of each of {ranks} ranks can "
            f"need {worst}; chunks={chunks} must be at least "
            f"{chunks_for(expert_parallel, capacity, tokens, ranks)}"
        )
    options = {
        field.name: getattr(expert_parallel, field.name)
        for field in dataclasses.fields(expert_parallel)
    }
    options["combine"] = options.pop("combine_mode")
    return ExpertParallel(**(options | {"capacity": capacity, "overflow": "error", "chunks": 1}))


def chunks_for(expert_parallel: ExpertParallel, capacity: int, tokens: int, ranks: int) -> int:
    """The fewest chunks of ``tokens`` tokens on each rank whose rows fit whatever the routing.

    ValueError when the rows of a single token do not fit.
    """
    fitting = bisect.bisect_right(
        range(1, tokens + 1), capacity, key=lambda n: expert_parallel.worst_capacity(n, ranks)
    )
    if tokens > 0 and fitting == 0:
        raise ValueError(
            f"ExpertParallel: capacity={capacity}; must be at least "
            f"{expert_parallel.worst_capacity(1, ranks)}, what one token of each of {ranks} ranks can need"
        )
    return -(-tokens // fitting) if tokens > 0 else 1


def cut(
    expert_parallel: ExpertParallel, group: ExpertParallel, experts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The part of each token, i32 [T], ascending from 0; and the number of parts, the same on all ranks."""
    tokens, pieces = experts.shape[0], expert_parallel.chunks
    num_experts = expert_parallel.num_experts
    ranks = jax.lax.axis_size(expert_parallel.axis_name)
    size = -(-tokens // pieces)
    piece = np.minimum(np.arange(tokens) // max(size, 1), pieces - 1).astype(np.int32)
    by_piece = jnp.where(experts < 0, -1, experts + num_experts * piece[:, None])
    counts = ragged_plan(by_piece, num_experts * pieces).group_sizes.reshape(pieces, num_experts)
    between = expert_parallel.between_processes()
    counts = _collective.count(counts, expert_parallel.axis_name, processes=between)
    aligned = -(-counts // group.alignment) * group.alignment
    owners = np.asarray(group.owners(ranks))[:, None] == np.arange(ranks)
    rows = aligned @ jnp.asarray(owners, jnp.int32)  # [pieces, ranks]
    capacity = group.static_capacity(size, ranks)

    def place(before: tuple[jax.Array, jax.Array], needed: jax.Array) -> tuple[Any, jax.Array]:
        used, part = before
        fits = jnp.all(used + needed <= capacity)
        part = part + jnp.where(fits, 0, 1)
        return (jnp.where(fits, used + needed, needed), part), part

    start = (jnp.zeros_like(rows[0]), jnp.int32(0))
    start = tuple(_register.vary_as(value, rows) for value in start)
    (_, last), of_piece = jax.lax.scan(place, start, rows)
    return of_piece[piece], last + 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_parts(serve: Serve, floats: tuple[jax.Array, ...], routed: tuple[Any, ...]) -> jax.Array:
    def one(index: Any) -> tuple[jax.Array, jax.Array]:
        return _of_part(serve, routed, index)(*floats), _inside(routed, index)

    def add(index: jax.Array, y: jax.Array) -> jax.Array:
        here, inside = one(index)
        return jnp.where(inside, here, y)

    return jax.lax.fori_loop(1, routed[2], add, one(0)[0])


def _backward(
    serve: Serve, saved: tuple[Any, ...], y_grad: jax.Array
) -> tuple[tuple[jax.Array, ...], None]:
    floats, routed = saved

    def gradients(index: Any) -> tuple[jax.Array, ...]:
        return jax.vjp(_of_part(serve, routed, index), *floats)[1](y_grad)

    def add(index: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        by_token, by_matrix = sums[:2], sums[2:]
        here, inside = gradients(index), _inside(routed, index)
        return (
            *(jnp.where(inside, new, old) for new, old in zip(here[:2], by_token, strict=True)),
            *(old + new for new, old in zip(here[2:], by_matrix, strict=True)),
        )

    return jax.lax.fori_loop(1, routed[2], add, gradients(0)), None


_in_parts.defvjp(lambda serve, *operands: (_in_parts(serve, *operands), operands), _backward)


def _of_part(serve: Serve, routed: tuple[Any, ...], index: Any) -> Callable[..., jax.Array]:
    """The layer as a function of what is differentiated, with all other tokens routed nowhere."""
    experts = jnp.where(_inside(routed, index), routed[0], -1)
    return lambda x, weights, *matrices: serve(x, experts, weights, *matrices)


def _inside(routed: tuple[Any, ...], index: Any) -> jax.Array:
    return (routed[1] == index)[:, None]
