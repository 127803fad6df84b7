# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The ragged plan: where each routed slot's row lies in the expert-ordered rows."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from anabranch import _register


class RaggedPlan(NamedTuple):
    """Rows of T tokens' k slots, stably ordered by (expert, token). Plain values, no handles.

    Attributes:
      group_sizes: i32 [E], rows of each expert.
      group_offsets: i32 [E+1], first row of each expert; the last entry is the number of rows used.
      row_token: i32 [R], token of each row; -1 past ``group_offsets[E]``.
      slot_row: i32 [T, k], row of each slot; -1 for a slot that is routed nowhere.
    """

    group_sizes: jax.Array
    group_offsets: jax.Array
    row_token: jax.Array
    slot_row: jax.Array


def ragged_plan(experts: jax.Array, num_experts: int, *, num_rows: int | None = None) -> RaggedPlan:
    """Orders the routed slots by (expert, token): a stable, parallel counting sort.

    Args:
      experts: i32 [T, k]; -1 routes a slot nowhere: it has no row.
      num_experts: E.
      num_rows: R, the static number of rows; None = T * k, which always suffices.

    Returns:
      ``RaggedPlan``, the same bits for any number of threads.

    Raises:
      ValueError: a shape or dtype does not fit.
      jax.errors.JaxRuntimeError: an id is below -1 or not below ``num_experts`` (the message names
        token, slot and id), or more slots are routed than ``num_rows`` (it gives both numbers). JAX
        turns it into a ValueError if the fault is found before the call is dispatched.
    """
    if experts.ndim != 2 or not jnp.issubdtype(experts.dtype, jnp.integer):
        raise ValueError(
            f"ragged_plan: experts must be integer [T, k], got {experts.dtype}{list(experts.shape)}"
        )
    if num_experts < 1:
        raise ValueError(f"ragged_plan: num_experts must be >= 1, got {num_experts}")
    tokens, topk = experts.shape
    rows = tokens * topk if num_rows is None else num_rows
    if not 0 <= rows < 2**31:
        raise ValueError(
            f"ragged_plan: the number of rows must be in [0, 2^31), got {rows} for experts "
            f"{list(experts.shape)} and num_rows={num_rows}"
        )
    if experts.dtype != jnp.int32:
        limits = jnp.iinfo(jnp.int32)
        if jnp.iinfo(experts.dtype).max > limits.max:
            experts = experts.clip(max=limits.max)
        if jnp.iinfo(experts.dtype).min < limits.min:
            experts = experts.clip(min=limits.min)
        experts = experts.astype(jnp.int32)
    return _ragged_plan(experts, num_experts, rows)


# Integers only, so nothing to differentiate; the rule says so to ``jax.grad``, which would refuse a
# bare FFI call.
@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _ragged_plan(experts: jax.Array, num_experts: int, rows: int) -> RaggedPlan:
    shapes = ((num_experts,), (num_experts + 1,), (rows,), experts.shape)
    results = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes]
    return RaggedPlan(*_register.call("ragged_plan", results, experts))


_ragged_plan.defvjp(
    lambda experts, num_experts, rows: (_ragged_plan(experts, num_experts, rows), None),
    lambda num_experts, rows, saved, cotangents: (None,),
)
