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
    return _call(activation, False, *operands)[0]


def _call(
    activation: int, save: bool, rows: jax.Array, row_weights: jax.Array, *rest: jax.Array
) -> list[jax.Array]:
    *experts, group_offsets = rest
    width = experts[0].shape[2]
    saved = width + width % 2 if rows.dtype == jnp.bfloat16 else width
    results = (
        jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        jax.ShapeDtypeStruct((rows.shape[0] if save else 0, 2 * saved), rows.dtype),
    )
    operands = (rows, row_weights, *experts, group_offsets, _identity(rows))
    return _register.call("moe_ffn_rows", results, *operands, activation=activation)


def _forward(activation: int, *operands: jax.Array) -> tuple[jax.Array, Any]:
    y, gate_up = _call(activation, True, *operands)
    return y, (operands, gate_up)


def _backward(activation: int, saved: Any, y_grad: jax.Array) -> tuple[Any, ...]:
    operands, gate_up = saved
    results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands[:5]]
    gradients = _register.call(
        "moe_ffn_rows_grad",
        results,
        *operands,
        _identity(operands[0]),
        gate_up,
        y_grad,
        activation=activation,
    )
    return (*gradients, None)


_rows.defvjp(_forward, _backward)


def _identity(rows: jax.Array) -> jax.Array:
    return jnp.arange(rows.shape[0], dtype=jnp.int32)
