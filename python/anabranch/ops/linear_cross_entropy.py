# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Output projection and cross entropy in one, block by block over the vocabulary."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch.ops.linear import linear

# One block of logits is at most this many f32 (16 MiB: it stays in the last-level cache), and never
# narrower than a product needs to be worth its packing.
_BLOCK_ELEMENTS = 4 * 1024 * 1024
_NARROWEST_BLOCK = 256


def linear_cross_entropy(
    x: jax.Array,
    w: jax.Array,
    labels: jax.Array,
    *,
    ignore_index: int = -1,
    z_loss: float = 0.0,
) -> jax.Array:
    """Returns `logsumexp(x w) - (x w)[label] + z_loss * logsumexp(x w)**2`, f32 [T].

    x [T, H] bf16 or f32, w [H, V] (f32 masters are rounded to x's type), labels i32 [T]. Logits are
    f32 and exist one block of the vocabulary at a time; the backward pass computes them again.
    Tokens whose label is `ignore_index` have loss 0 and contribute exactly 0 to every gradient,
    even when their x is not finite. Raises ValueError, printing what does not fit, for wrong shapes
    or types and for labels outside [0, V) that are not `ignore_index`. Traced labels cannot be
    seen here: such a token's loss is NaN then, and nothing outside w is read.
    """
    _validate(x, w, labels, ignore_index)
    with jax.named_scope("linear_cross_entropy"):
        valid = labels != ignore_index
        # Ignored rows must not reach the products: 0 * NaN is NaN.
        seen = jnp.where(valid[:, None], x, jnp.zeros((), x.dtype))
        loss = _losses(seen, w, labels, float(z_loss))
        known = (labels >= 0) & (labels < w.shape[1])
        return jnp.where(valid, jnp.where(known, loss, jnp.nan), 0.0)


def _blocks(tokens: int, vocabulary: int) -> tuple[int, int]:
    """Returns (width of a block, number of whole blocks); the rest is a last, narrower block."""
    fitting = _BLOCK_ELEMENTS // max(tokens, 1) // _NARROWEST_BLOCK * _NARROWEST_BLOCK
    half = -(-vocabulary // 2)  # always two blocks: the logits are never whole
    width = max(min(max(fitting, _NARROWEST_BLOCK), half), 1)
    return width, vocabulary // width


def _project(x: jax.Array, w: jax.Array) -> jax.Array:
    return linear(x, w, preferred_element_type=jnp.float32)


def _fold_blocks(body: Any, carry: Any, w: jax.Array, width: int, count: int) -> tuple[Any, Any]:
    """Runs `carry, out = body(carry, w_block, first column)` over whole blocks, then the rest."""

    def step(carry: Any, index: jax.Array) -> tuple[Any, Any]:
        first = index * width
        block = jax.lax.dynamic_slice_in_dim(w, first, width, axis=1)
        return body(carry, block, first)

    carry, stacked = jax.lax.scan(step, carry, jnp.arange(count))
    rest = w[:, count * width :]
    tail = None
    if rest.shape[1]:
        carry, tail = body(carry, rest, jnp.int32(count * width))
    return carry, (stacked, tail)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _losses(x: jax.Array, w: jax.Array, labels: jax.Array, z_loss: float) -> jax.Array:
    return _forward(x, w, labels, z_loss)[0]


def _forward(x: jax.Array, w: jax.Array, labels: jax.Array, z_loss: float) -> tuple[Any, Any]:
    def body(carry: Any, block: jax.Array, first: jax.Array) -> tuple[Any, None]:
        top, total, picked = carry
        logits = _project(x, block)
        new_top = jnp.maximum(top, jnp.max(logits, axis=-1))
        total = total * jnp.exp(top - new_top)
        total = total + jnp.sum(jnp.exp(logits - new_top[:, None]), axis=-1)
        here = _is_label(labels, first, block.shape[1])
        return (new_top, total, picked + jnp.sum(jnp.where(here, logits, 0.0), axis=-1)), None

    tokens = x.shape[0]
    start = (jnp.full((tokens,), -jnp.inf), jnp.zeros((tokens,)), jnp.zeros((tokens,)))
    (top, total, picked), _ = _fold_blocks(body, start, w, *_blocks(tokens, w.shape[1]))
    normaliser = top + jnp.log(total)
    loss = normaliser - picked + z_loss * normaliser**2
    return loss, (x, w, labels, normaliser)


def _backward(z_loss: float, residuals: Any, cotangent: jax.Array) -> tuple[Any, Any, Any]:
    x, w, labels, normaliser = residuals
    through_sum = cotangent * (1.0 + 2.0 * z_loss * normaliser)

    def body(dx: jax.Array, block: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits, transpose = jax.vjp(_project, x, block)
        shares = jnp.exp(logits - normaliser[:, None]) * through_sum[:, None]
        here = _is_label(labels, first, block.shape[1])
        part, dw = transpose(shares - jnp.where(here, cotangent[:, None], 0.0))
        return dx + part.astype(jnp.float32), dw

    width, count = _blocks(x.shape[0], w.shape[1])
    dx, (stacked, tail) = _fold_blocks(body, jnp.zeros(x.shape, jnp.float32), w, width, count)
    dw = jnp.moveaxis(stacked, 0, 1).reshape(w.shape[0], count * width)
    if tail is not None:
        dw = jnp.concatenate([dw, tail], axis=1)
    no_gradient = np.zeros(labels.shape, jax.dtypes.float0)
    return dx.astype(x.dtype), dw.astype(w.dtype), no_gradient


_losses.defvjp(_forward, _backward)


def _is_label(labels: jax.Array, first: jax.Array, width: int) -> jax.Array:
    """Bool [T, width]: true in the column of each token's label, if it lies in this block."""
    return (labels - first)[:, None] == jnp.arange(width, dtype=labels.dtype)


def _validate(x: jax.Array, w: jax.Array, labels: jax.Array, ignore_index: int) -> None:
    shapes = f"x {x.shape}, w {w.shape}, labels {labels.shape}"
    if x.ndim != 2 or w.ndim != 2 or labels.ndim != 1:
        raise ValueError(f"linear_cross_entropy: {shapes}; must be [T, H], [H, V] and [T]")
    if x.shape[1] != w.shape[0] or x.shape[0] != labels.shape[0] or w.shape[1] == 0:
        raise ValueError(f"linear_cross_entropy: {shapes}; must be [T, H], [H, V] and [T], V > 0")
    types = f"x {x.dtype}, w {w.dtype}, labels {labels.dtype}"
    floating = jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(w.dtype, jnp.floating)
    if not floating or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"linear_cross_entropy: {types}; must be floating, floating and integer")
    if isinstance(labels, jax.core.Tracer):
        return
    values = np.asarray(labels)
    wrong = np.flatnonzero((values != ignore_index) & ((values < 0) | (values >= w.shape[1])))
    if wrong.size:
        first = int(wrong[0])
        raise ValueError(
            f"linear_cross_entropy: labels[{first}]={int(values[first])}; must be in "
            f"[0, {w.shape[1]}) or ignore_index={ignore_index}"
        )
