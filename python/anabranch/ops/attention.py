# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Causal attention over heads, with grouped keys and values and packed segments."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Finite, so that exp(score - maximum) of a masked key is 0 and never NaN.
_MASKED = -1e30

# Queries are taken in blocks that see only the keys up to their end. Four blocks do 5/8 of the work
# of a square; more, or narrower ones than 128 rows, save little time and cost seconds of compilation.
# Wider than 512 the scores of one block are too large to stay in the last-level cache.
_BLOCKS = 4
_NARROWEST_BLOCK, _WIDEST_BLOCK = 128, 512


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
        return _attention(query, key, value, segment_ids, float(scale), causal)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array | None,
    scale: float,
    causal: bool,
) -> jax.Array:
    return _forward(query, key, value, segment_ids, scale, causal)[0]


def _forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segment_ids: jax.Array | None,
    scale: float,
    causal: bool,
) -> tuple[jax.Array, Any]:
    q, k, v = _by_group(query, key.shape[2]), _by_head(key), _by_head(value)
    outputs, normalisers = [], []
    for rows, seen, mask in _blocks(query.shape[1], causal, segment_ids):
        scores = _scores(q[..., rows, :], k[:, :, seen], mask, scale)
        top = jnp.max(scores, axis=-1, keepdims=True)
        shares = jnp.exp(scores - top)
        total = jnp.sum(shares, axis=-1, keepdims=True)
        mixed = _product("bmgst,bmtd->bmgsd", shares.astype(query.dtype), v[:, :, seen])
        outputs.append(mixed / total)
        normalisers.append(top + jnp.log(total))
    output = _by_position(jnp.concatenate(outputs, axis=3)).astype(query.dtype)
    return output, (query, key, value, segment_ids, output, jnp.concatenate(normalisers, axis=3))


def _backward(scale: float, causal: bool, residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    """The scores are computed again: keeping them would cost N / D times the operands."""
    query, key, value, segment_ids, output, normaliser = residuals
    groups, length, wide = key.shape[2], query.shape[1], normaliser.dtype
    # sum_t share_t d(share_t) of a row, which the softmax's gradient subtracts.
    mean = jnp.sum(cotangent.astype(wide) * output.astype(wide), axis=-1, keepdims=True)
    q, k, v = _by_group(query, groups), _by_head(key), _by_head(value)
    dout, mean = _by_group(cotangent.astype(query.dtype), groups), _by_group(mean, groups)
    dq, dk, dv = [], jnp.zeros(k.shape, wide), jnp.zeros(v.shape, wide)
    for rows, seen, mask in _blocks(length, causal, segment_ids):
        scores = _scores(q[..., rows, :], k[:, :, seen], mask, scale)
        shares = jnp.exp(scores - normaliser[..., rows, :])
        dshares = _product("bmgsd,bmtd->bmgst", dout[..., rows, :], v[:, :, seen])
        dscores = (shares * (dshares - mean[..., rows, :])).astype(query.dtype)
        dq.append(_product("bmgst,bmtd->bmgsd", dscores, k[:, :, seen]))
        dk += _padded(_product("bmgst,bmgsd->bmtd", dscores, q[..., rows, :]), length)
        shares = shares.astype(query.dtype)
        dv += _padded(_product("bmgst,bmgsd->bmtd", shares, dout[..., rows, :]), length)
    dquery = _by_position(jnp.concatenate(dq, axis=3) * scale).astype(query.dtype)
    dkey = jnp.swapaxes(dk * scale, 1, 2).astype(key.dtype)
    dvalue = jnp.swapaxes(dv, 1, 2).astype(value.dtype)
    no_gradient = None if segment_ids is None else np.zeros(segment_ids.shape, jax.dtypes.float0)
    return dquery, dkey, dvalue, no_gradient


_attention.defvjp(_forward, _backward)


def _blocks(
    length: int, causal: bool, segment_ids: jax.Array | None
) -> Iterator[tuple[slice, slice, jax.Array | None]]:
    """Yields (query rows, keys they may see, mask [1 or B, rows, keys] or None) of each block."""
    size = -(-length // _BLOCKS)
    size = min(max(-(-size // _NARROWEST_BLOCK) * _NARROWEST_BLOCK, 1), _WIDEST_BLOCK)
    for start in range(0, length, size):
        stop = min(start + size, length)
        end = stop if causal else length
        mask = None
        if causal:
            mask = np.arange(start, stop)[None, :, None] >= np.arange(end)[None, None, :]
        if segment_ids is not None:
            same = segment_ids[:, start:stop, None] == segment_ids[:, None, :end]
            mask = same if mask is None else same & mask
        yield slice(start, stop), slice(0, end), mask


def _scores(q: jax.Array, k: jax.Array, mask: jax.Array | None, scale: float) -> jax.Array:
    scores = _product("bmgsd,bmtd->bmgst", q, k) * scale
    return scores if mask is None else jnp.where(mask[:, None, None], scores, _MASKED)


def _product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    wide = jnp.promote_types(left.dtype, jnp.float32)
    return jnp.einsum(equation, left, right, preferred_element_type=wide)


def _by_head(x: jax.Array) -> jax.Array:
    """[B, S, M, D] -> [B, M, S, D]: products over contiguous rows are several times faster."""
    return jnp.swapaxes(x, 1, 2)


def _by_group(x: jax.Array, groups: int) -> jax.Array:
    """[B, S, M * G, D] -> [B, M, G, S, D]."""
    batch, length, heads, size = x.shape
    return x.reshape(batch, length, groups, heads // groups, size).transpose(0, 2, 3, 1, 4)


def _by_position(x: jax.Array) -> jax.Array:
    """[B, M, G, S, D] -> [B, S, M * G, D]."""
    batch, groups, members, length, size = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(batch, length, groups * members, size)


def _padded(x: jax.Array, length: int) -> jax.Array:
    """[B, M, t, D] -> [B, M, length, D], zero behind."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[2]), (0, 0)))


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
