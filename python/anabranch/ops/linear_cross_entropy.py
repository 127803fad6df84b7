# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Output projection and cross entropy in one, slab by slab over the vocabulary."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import _register
from anabranch.ops import token_tree
from anabranch.ops.grouped_gemm import SERVED_DTYPES
from anabranch.ops.token_tree import TokenTree


def linear_cross_entropy(
    x: jax.Array,
    w: jax.Array,
    labels: jax.Array,
    *,
    ignore_index: int = -1,
    z_loss: float = 0.0,
) -> jax.Array:
    """Returns `logsumexp(x w) - (x w)[label] + z_loss * logsumexp(x w)**2` for each token.

    Logits are f32 sums that exist one tile at a time; the backward pass computes them again and
    forms their gradient slab by slab of the vocabulary, in x's dtype. Nothing of size [T, V] is ever
    stored in f32. The same bits for any number of threads; w's gradient is summed over tokens as
    `anabranch.ops.token_tree` says. The sums are those of the online softmax
    (Milakov & Gimelshein 2018, arXiv 1805.02867); z_loss is that of PaLM (arXiv 2204.02311).

    Args:
      x: [T, H] bf16, f32 or f16.
      w: [H, V] bf16, f32 or f16. With x bf16, products are of bf16: an f32 master is rounded while
        it is packed, and its gradient is an f32 sum. Other mixtures are computed in f32.
      labels: integers [T], in [0, V) or `ignore_index`.
      ignore_index: tokens of this label have loss 0 and contribute exactly 0 to every gradient, even
        when their x is not finite.
      z_loss: factor of the squared log-sum-exp.

    Returns:
      f32 [T], in nats.

    Raises:
      ValueError: a shape, dtype or (outside of jit) label does not fit; the message prints it.
      jax.errors.JaxRuntimeError: the same for a label inside of jit.
    """
    x, w, labels = jnp.asarray(x), jnp.asarray(w), jnp.asarray(labels)
    _validate(x, w, labels, ignore_index)
    if x.dtype != jnp.bfloat16 or w.dtype not in (jnp.bfloat16, jnp.float32):
        x, w = x.astype(jnp.float32), w.astype(jnp.float32)
    tree = token_tree.current()
    return _run(x, w, labels.astype(jnp.int32), int(ignore_index), float(z_loss), tree)


# One dispatch per eager call; an engine error then surfaces as it does under jit.
@functools.partial(jax.jit, static_argnums=(3, 4, 5), inline=True)
def _run(
    x: jax.Array, w: jax.Array, labels: jax.Array, ignore_index: int, z_loss: float, tree: TokenTree
) -> jax.Array:
    with jax.named_scope("linear_cross_entropy"):
        return _losses(*_register.align(x, w, labels), ignore_index, z_loss, tree)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _losses(
    x: jax.Array, w: jax.Array, labels: jax.Array, ignore_index: int, z_loss: float, tree: TokenTree
) -> jax.Array:
    return _forward(x, w, labels, ignore_index, z_loss, tree)[0]


def _forward(
    x: jax.Array, w: jax.Array, labels: jax.Array, ignore_index: int, z_loss: float, tree: TokenTree
) -> tuple[jax.Array, Any]:
    del tree  # of the backward pass
    per_token = jax.ShapeDtypeStruct(labels.shape, jnp.float32)
    loss, normaliser = _register.call(
        "linear_cross_entropy",
        (per_token, per_token),
        x,
        w,
        labels,
        ignore_index=ignore_index,
        z_loss=z_loss,
    )
    return loss, (x, w, labels, normaliser)


def _backward(
    ignore_index: int, z_loss: float, tree: TokenTree, residuals: Any, loss_grad: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x, w, labels, normaliser = residuals
    x_grad, w_grad = _register.call(
        "linear_cross_entropy_grad",
        [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in (x, w)],
        x,
        w,
        labels,
        normaliser,
        loss_grad,
        ignore_index=ignore_index,
        z_loss=z_loss,
        num_leaves=tree.leaves,
        num_ranks=tree.num_shares,
    )
    return x_grad, w_grad, None  # labels are integers


_losses.defvjp(_forward, _backward)


def _validate(x: jax.Array, w: jax.Array, labels: jax.Array, ignore_index: int) -> None:
    shapes = f"x {x.shape}, w {w.shape}, labels {labels.shape}"
    if x.ndim != 2 or w.ndim != 2 or labels.ndim != 1:
        raise ValueError(f"linear_cross_entropy: {shapes}; must be [T, H], [H, V] and [T]")
    if x.shape[1] != w.shape[0] or x.shape[0] != labels.shape[0] or w.shape[1] == 0:
        raise ValueError(f"linear_cross_entropy: {shapes}; must be [T, H], [H, V] and [T], V > 0")
    types = f"x {x.dtype}, w {w.dtype}, labels {labels.dtype}"
    served = x.dtype in SERVED_DTYPES and w.dtype in SERVED_DTYPES
    if not served or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"linear_cross_entropy: {types}; x and w must be f32, bf16 or f16, labels integers"
        )
    if isinstance(labels, jax.core.Tracer):
        return  # the engine checks them
    values = np.asarray(labels)
    wrong = np.flatnonzero((values != ignore_index) & ((values < 0) | (values >= w.shape[1])))
    if wrong.size:
        first = int(wrong[0])
        raise ValueError(
            f"linear_cross_entropy: labels[{first}]={int(values[first])}; must be in "
            f"[0, {w.shape[1]}) or ignore_index={ignore_index}"
        )
