# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Causal attention over heads, with grouped keys and values and packed segments."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Finite, so that a row whose every key is masked stays finite: it then averages its keys.
_MASKED = -1e30


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

    query [B, S, N, D], key [B, S, M, D], value [B, S, M, Dv] of one type, bf16 or f32; N is a
    multiple of M and head n uses key and value head n // (N / M) (arXiv 2305.13245). `scale` is
    D**-0.5 by default. Position s sees positions t <= s when `causal`, and only those with its own
    `segment_ids` (integers [B, S]). Products accumulate and the softmax is computed in f32.
    Raises ValueError, printing the shapes or types, when they do not fit together.
    """
    _validate(query, key, value, segment_ids)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    with jax.named_scope("attention"):
        mask = _mask(query.shape[1], causal, segment_ids)
        return _attention(query, key, value, mask, float(scale))


def _attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, scale: float
) -> jax.Array:
    batch, length, heads, size = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, length, groups, heads // groups, size)
    scores = jnp.einsum("bsmgd,btmd->bmgst", grouped, key, preferred_element_type=jnp.float32)
    scores = scores * scale
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores, _MASKED)
    shares = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    mixed = jnp.einsum("bmgst,btmd->bsmgd", shares, value, preferred_element_type=jnp.float32)
    return mixed.reshape(batch, length, heads, value.shape[-1]).astype(query.dtype)


def _mask(length: int, causal: bool, segment_ids: jax.Array | None) -> jax.Array | None:
    """Bool [1 or B, S, S], true where position s may see position t; None for everywhere."""
    mask = jnp.tril(jnp.ones((1, length, length), bool)) if causal else None
    if segment_ids is None:
        return mask
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same if mask is None else same & mask


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
