# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Moves token rows into expert order and sums them back."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops.ragged_plan import RaggedPlan


def gather_rows(
    x: jax.Array, plan: RaggedPlan, weights: jax.Array | None = None
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Copies each routed slot's token row to its place in expert order.

    Differentiable in ``x`` and ``weights``: the gradient of ``x`` is ``combine_rows`` of the rows'
    gradient.

    Args:
      x: f32, bf16 or f16 [T, H].
      plan: from ``ragged_plan``, with R rows.
      weights: floating-point [T, k], a value per slot to be carried along.

    Returns:
      rows [R, H] in x's dtype, zero past ``plan.group_offsets[E]``; with ``weights`` also
      row_weights f32 [R], zero there as well.

    Raises:
      ValueError: a shape or dtype does not fit.
      jax.errors.JaxRuntimeError: the plan points outside ``x`` or ``rows``.
    """
    _check_rows("gather_rows", "x", x, plan, plan.slot_row.shape[0])
    indices = (plan.row_token, plan.slot_row)
    rows = _gather_rows(*_register.align(_served(x), *indices)).astype(x.dtype)
    if weights is None:
        return rows
    _check_weights("gather_rows", weights, plan)
    return rows, _gather_weights(*_register.align(weights.astype(jnp.float32), *indices))


def combine_rows(rows: jax.Array, plan: RaggedPlan, weights: jax.Array | None = None) -> jax.Array:
    """Sums each token's rows, times their weights, in ascending order of their experts.

    Args:
      rows: f32, bf16 or f16 [R, H] in expert order.
      plan: from ``ragged_plan``, with R rows.
      weights: floating-point [T, k], used in f32; None = 1. The weight of a slot that is routed
        nowhere is ignored.

    Returns:
      [T, H] in rows' dtype: the f32 sum, rounded once. A token without rows gets zeros.

    Raises:
      ValueError: a shape or dtype does not fit.
      jax.errors.JaxRuntimeError: the plan points outside ``rows``.
    """
    _check_rows("combine_rows", "rows", rows, plan, plan.row_token.shape[0])
    if weights is None:
        indices = (plan.row_token, plan.slot_row)
        return _combine_rows(*_register.align(_served(rows), *indices)).astype(rows.dtype)
    _check_weights("combine_rows", weights, plan)
    operands = _register.align(_served(rows), weights.astype(jnp.float32), *plan)
    return _combine_weighted_rows(*operands[:2], RaggedPlan(*operands[2:])).astype(rows.dtype)


@jax.custom_vjp
def _gather_rows(x: jax.Array, row_token: jax.Array, slot_row: jax.Array) -> jax.Array:
    del slot_row  # for the gradient
    result = jax.ShapeDtypeStruct((row_token.shape[0], x.shape[1]), x.dtype)
    return _register.call("gather_rows", result, x, row_token)


_gather_rows.defvjp(
    lambda x, row_token, slot_row: (_gather_rows(x, row_token, slot_row), (row_token, slot_row)),
    lambda plan, d_rows: (_combine_rows(d_rows, *plan), None, None),
)


@jax.custom_vjp
def _gather_weights(weights: jax.Array, row_token: jax.Array, slot_row: jax.Array) -> jax.Array:
    result = jax.ShapeDtypeStruct(row_token.shape, jnp.float32)
    return _register.call("gather_weights", result, weights, slot_row)


def _gather_weights_backward(
    slot_row: jax.Array, d_row_weights: jax.Array
) -> tuple[jax.Array, None, None]:
    if d_row_weights.shape[0] == 0:
        return jnp.zeros(slot_row.shape, jnp.float32), None, None
    return jnp.where(slot_row < 0, 0, d_row_weights[slot_row]), None, None


_gather_weights.defvjp(
    lambda weights, row_token, slot_row: (_gather_weights(weights, row_token, slot_row), slot_row),
    _gather_weights_backward,
)


@jax.custom_vjp
def _combine_rows(rows: jax.Array, row_token: jax.Array, slot_row: jax.Array) -> jax.Array:
    del row_token  # for the gradient
    result = jax.ShapeDtypeStruct((slot_row.shape[0], rows.shape[1]), rows.dtype)
    no_weights = jnp.zeros((0, 0), jnp.float32)
    return _register.call("combine_rows", result, rows, slot_row, no_weights, weighted=False)


_combine_rows.defvjp(
    lambda rows, row_token, slot_row: (
        _combine_rows(rows, row_token, slot_row),
        (row_token, slot_row),
    ),
    lambda plan, d_y: (_gather_rows(d_y, *plan), None, None),
)


@jax.custom_vjp
def _combine_weighted_rows(rows: jax.Array, weights: jax.Array, plan: RaggedPlan) -> jax.Array:
    result = jax.ShapeDtypeStruct((plan.slot_row.shape[0], rows.shape[1]), rows.dtype)
    return _register.call("combine_rows", result, rows, plan.slot_row, weights, weighted=True)


def _combine_weighted_rows_backward(
    saved: tuple[jax.Array, jax.Array, RaggedPlan], d_y: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, plan = saved
    results = (
        jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        jax.ShapeDtypeStruct(weights.shape, jnp.float32),
    )
    d_rows, d_weights = _register.call(
        "combine_rows_grad", results, rows, plan.slot_row, plan.group_offsets, weights, d_y
    )
    return d_rows, d_weights, None


_combine_weighted_rows.defvjp(
    lambda rows, weights, plan: (
        _combine_weighted_rows(rows, weights, plan),
        (rows, weights, plan),
    ),
    _combine_weighted_rows_backward,
)


def _served(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype == jnp.float16 else x


def _check_rows(op: str, name: str, array: jax.Array, plan: RaggedPlan, length: int) -> None:
    if array.ndim != 2 or array.shape[0] != length:
        raise ValueError(
            f"{op}: {name} must be [{length}, H] to fit the plan (row_token "
            f"{list(plan.row_token.shape)}, slot_row {list(plan.slot_row.shape)}), got "
            f"{array.dtype}{list(array.shape)}"
        )
    if array.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        raise ValueError(
            f"{op}: {name} must be float32, bfloat16 or float16, got "
            f"{array.dtype}{list(array.shape)}"
        )


def _check_weights(op: str, weights: jax.Array, plan: RaggedPlan) -> None:
    if weights.shape != plan.slot_row.shape or not jnp.issubdtype(weights.dtype, jnp.floating):
        raise ValueError(
            f"{op}: weights must be floating-point {list(plan.slot_row.shape)} to fit the plan, "
            f"got {weights.dtype}{list(weights.shape)}"
        )
