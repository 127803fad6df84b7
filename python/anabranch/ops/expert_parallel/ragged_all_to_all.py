# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Exchange of ragged pieces between ranks: what JAX's own CPU back end lacks (jax#34755)."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _collective, _processes, _register
from anabranch._collective import AxisName, Place


def ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: AxisName,
) -> jax.Array:
    """``jax.lax.ragged_all_to_all``: rank r's piece p goes to rank p; inside ``jax.shard_map``.

    Ranks are devices of this process or, after ``start_processes``, processes with one device each.

    ``output_of(p)[output_offsets[p] + j] = operand[input_offsets[p] + j]`` for j below
    ``send_sizes[p]``: output offsets are positions at the receiver. Differentiable in ``operand`` and
    ``output``; an operand row that is sent several times gets the sum of its gradients.

    Args:
      operand: [N, ...] of any dtype.
      output: [M, ...] of the same dtype and trailing shape; rows that nobody writes are kept.
      input_offsets: integer [P m], for P ranks and m pieces to each: piece p m + u goes to rank p.
      send_sizes: integer [P m].
      output_offsets: integer [P m].
      recv_sizes: integer [P m]; entry p m + u is the size of rank p's piece u to this rank.
      axis_name: mesh axis, or axes, of the ranks.

    Returns:
      [M, ...], the new output; it takes output's memory where that is free.

    Raises:
      ValueError: shapes or dtypes do not fit.
      jax.errors.JaxRuntimeError: on every rank, when a piece lies outside its array or is not of the
        size that its receiver expects: the message names the rank and the piece.
    """
    vectors = (input_offsets, send_sizes, output_offsets, recv_sizes)
    where = _collective.place(axis_name, processes=_processes.between())
    _check(operand, output, vectors, where.ranks)
    vectors = tuple(vector.astype(jnp.int32) for vector in vectors)
    operands = _register.align(where.index, operand, output, *vectors)
    return _exchange((where.ranks, where.processes), *operands)


def exchange(group: tuple[int, bool], *operands: jax.Array) -> list[jax.Array]:
    """The bare call of ``group``, its size and whether its ranks are processes.

    Operands are the place, operand, output, and the four vectors in i32.
    """
    index, operand, output, *vectors = operands
    return _collective.call(
        "ragged_all_to_all",
        [jax.ShapeDtypeStruct(output.shape, output.dtype)],
        Place(index, *group),
        operand,
        output,
        *vectors,
        aliases={1: 0},
        row_bytes=_row_bytes(output),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _exchange(group: tuple[int, bool], *operands: jax.Array) -> jax.Array:
    return exchange(group, *operands)[0]


def _forward(group: tuple[int, bool], *operands: jax.Array) -> tuple[jax.Array, Any]:
    index, operand, _, *vectors = operands
    # An array without rows carries the operand's shape and dtype to the gradient.
    return _exchange(group, *operands), (index, operand.shape[0], operand[:0], *vectors)


def _backward(group: tuple[int, bool], saved: Any, gradient: jax.Array) -> tuple[Any, ...]:
    index, rows, like, *vectors = saved
    if gradient.dtype.itemsize > 4:
        raise ValueError(f"ragged_all_to_all: no gradient in {gradient.dtype}; at most float32")
    wide = gradient if gradient.dtype == jnp.bfloat16 else gradient.astype(jnp.float32)
    results = [
        jax.ShapeDtypeStruct((rows, *like.shape[1:]), wide.dtype),
        jax.ShapeDtypeStruct(gradient.shape, wide.dtype),
    ]
    gradients = _collective.call(
        "ragged_all_to_all_grad",
        results,
        Place(index, *group),
        wide,
        *vectors,
        row_bytes=_row_bytes(wide),
    )
    d_operand, d_output = (array.astype(like.dtype) for array in gradients)
    return None, d_operand, d_output, *(None for _ in vectors)


_exchange.defvjp(_forward, _backward)


def _row_bytes(array: jax.Array) -> int:
    return math.prod(array.shape[1:]) * array.dtype.itemsize


def _check(
    operand: jax.Array, output: jax.Array, vectors: tuple[jax.Array, ...], ranks: int
) -> None:
    def text(array: jax.Array) -> str:
        return f"{array.dtype}{list(array.shape)}"

    if operand.ndim < 1 or operand.shape[1:] != output.shape[1:] or operand.dtype != output.dtype:
        raise ValueError(
            f"ragged_all_to_all: operand {text(operand)} and output {text(output)} must agree in "
            "dtype and in all but their first axis"
        )
    names = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    for name, vector in zip(names, vectors, strict=True):
        whole = jnp.issubdtype(vector.dtype, jnp.integer) and vector.ndim == 1
        if not whole or vector.shape != vectors[0].shape or vector.shape[0] % ranks:
            raise ValueError(
                f"ragged_all_to_all: {name} {text(vector)} must be integer and like input_offsets "
                f"{text(vectors[0])}, a multiple of the axis size {ranks} long"
            )
