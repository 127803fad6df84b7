# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A rank's own experts over the rows that were dispatched to it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register


def moe_ffn_rows(
    activation: int,
    rows: jax.Array,
    row_weights: jax.Array,
    w_gate: jax.Array,
    w_up: jax.Array,
    w_down: jax.Array,
    group_offsets: jax.Array,
) -> jax.Array:
    """Returns ``row_weights * (act(rows @ w_gate[e], rows @ w_up[e]) @ w_down[e])``, rounded once.

    The same bits as the rows inside ``moe_ffn``. Rows past ``group_offsets[-1]`` are neither read
    nor written: they are undefined in the result and in the gradient of ``rows``.

    Args:
      activation: index into ``reference.ACTIVATIONS``.
      rows: bf16 or f32 [C, H], ordered by expert.
      row_weights: f32 [C].
      w_gate: [L, H, F] in rows' dtype, or f32 with bf16 rows.
      w_up: [L, H, F].
      w_down: [L, F, H].
      group_offsets: i32 [L+1].
    """
    return _rows(
        activation, *_register.align(rows, row_weights, w_gate, w_up, w_down, group_offsets)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(activation: int, *operands: jax.Array) -> jax.Array:
    return rows_forward(activation, False, *operands)[0]


def rows_forward(
    activation: int, save: bool, *operands: jax.Array, first_expert: int = 0
) -> list[jax.Array]:
    """The bare call: the result, and what the backward pass needs, or nothing.

    ``group_offsets`` [n+1] may be of n experts alone, those of the weights from ``first_expert`` on.
    """
    rows, row_weights, *experts, group_offsets = operands
    width = experts[0].shape[2]
    saved = width + width % 2 if rows.dtype == jnp.bfloat16 else width
    results = (
        jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        jax.ShapeDtypeStruct((rows.shape[0] if save else 0, 2 * saved), rows.dtype),
    )
    given = (rows, row_weights, *experts, group_offsets, _identity(rows))
    attributes = {"activation": activation, "first_expert": first_expert}
    return _register.call("moe_ffn_rows", results, *given, **attributes)


def rows_backward(
    activation: int,
    operands: tuple[jax.Array, ...],
    gate_up: jax.Array,
    y_grad: jax.Array,
    *,
    first_expert: int = 0,
    before: tuple[jax.Array, ...] = (),
) -> list[jax.Array]:
    """The bare call: gradients of rows, row_weights and the three weights.

    ``before``: gradients of the weights, of which those of other experts are kept.
    """
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (*operands[:5], gate_up)]
    given = (*operands, _identity(operands[0]), gate_up, y_grad)
    aliases = {len(given) + i: 2 + i for i in range(len(before))}
    *gradients, _ = _register.call(
        "moe_ffn_rows_grad",
        results,
        *given,
        *before,
        aliases=aliases | {len(given) - 2: 5},  # the gradient works in what was saved
        activation=activation,
        first_expert=first_expert,
    )
    return gradients


def _forward(activation: int, *operands: jax.Array) -> tuple[jax.Array, Any]:
    y, gate_up = rows_forward(activation, True, *operands)
    return y, (operands, gate_up)


def _backward(activation: int, saved: Any, y_grad: jax.Array) -> tuple[Any, ...]:
    return (*rows_backward(activation, *saved, y_grad), None)


_rows.defvjp(_forward, _backward)


def _identity(rows: jax.Array) -> jax.Array:
    return jnp.arange(rows.shape[0], dtype=jnp.int32)
