# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Causal attention over heads, with grouped keys and values and packed segments."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from anabranch import _register
from anabranch.ops import reference


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    scale: float | None = None,
    causal: bool = True,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """Returns `softmax(scale * query key^T + mask) value`, [B, S, N, Dv] in query's type.

    query [B, S, N, D], key [B, S, M, D], value [B, S, M, Dv] of one floating type; N is a multiple
    of M and head n uses key and value head n // (N / M) (arXiv 2305.13245). `scale` is D**-0.5 by
    default. Position s sees positions t <= s when `causal`, and only those with its own
    `segment_ids` (integers [B, S]); 0 is padding, which sees nothing, is seen by nobody and gets
    output and gradients 0.

    Memory is linear in S: an online softmax over blocks of keys, computed again for the gradient
    (arXiv 2205.14135); blocks that nobody sees cost nothing. Scores, softmax and sums are f32;
    bf16 shares and their gradients are rounded to bf16 before they multiply. The same bits for any
    number of threads. f16 is computed as f32; f64 by the plain formula, with all scores in memory.
    Raises ValueError, printing the shapes or types, when they do not fit together.
    """
    _validate(query, key, value, segment_ids)
    scale = float(query.shape[-1] ** -0.5 if scale is None else scale)
    with jax.named_scope("attention"):
        if query.dtype == jnp.float64:
            return reference.attention(query, key, value, scale, causal, segment_ids)
        narrow = query.dtype
        if narrow != jnp.bfloat16:
            query, key, value = (part.astype(jnp.float32) for part in (query, key, value))
        if segment_ids is None:
            segment_ids = jnp.zeros((0,), jnp.int32)
        operands = (query, key, value, segment_ids.astype(jnp.int32))
        return _attention(scale, causal, *_register.align(*operands)).astype(narrow)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(scale: float, causal: bool, *operands: jax.Array) -> jax.Array:
    return _forward(scale, causal, *operands)[0]


def _forward(scale: float, causal: bool, *operands: jax.Array) -> tuple[jax.Array, Any]:
    query, _, value, _ = operands
    batch, length, heads, _ = query.shape
    results = (
        jax.ShapeDtypeStruct((batch, length, heads, value.shape[3]), query.dtype),
        jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
    )
    output, log_sum_exp = _register.call(
        "attention", results, *operands, scale=scale, causal=causal
    )
    # Names for policies of `jax.checkpoint`, see `anabranch.models`.
    output = checkpoint_name(output, "attention_output")
    log_sum_exp = checkpoint_name(log_sum_exp, "attention_log_sum_exp")
    return output, (*operands, output, log_sum_exp)


def _backward(
    scale: float, causal: bool, residuals: Any, output_grad: jax.Array
) -> tuple[Any, ...]:
    grads = _register.call(
        "attention_grad",
        [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in residuals[:3]],
        *residuals,
        output_grad,
        scale=scale,
        causal=causal,
    )
    return (*grads, np.zeros(residuals[3].shape, jax.dtypes.float0))


_attention.defvjp(_forward, _backward)


def _validate(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array | None
) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(f"attention: {shapes}; each must be [batch, positions, heads, size]")
    if query.shape[:2] != key.shape[:2] or key.shape[:3] != value.shape[:3]:
        raise ValueError(f"attention: {shapes}; batch, positions and key heads must agree")
    if query.shape[3] != key.shape[3]:
        raise ValueError(f"attention: {shapes}; query and key heads must have one size")
    if key.shape[2] == 0 or query.shape[2] % key.shape[2]:
        raise ValueError(f"attention: {shapes}; query heads must be a multiple of key heads")
    if not query.dtype == key.dtype == value.dtype or not jnp.issubdtype(query.dtype, jnp.floating):
        types = f"query {query.dtype}, key {key.dtype}, value {value.dtype}"
        raise ValueError(f"attention: {types}; must be one floating type")
    if segment_ids is not None and segment_ids.shape != query.shape[:2]:
        raise ValueError(
            f"attention: segment_ids {segment_ids.shape}, query {query.shape}; must be [B, S]"
        )
