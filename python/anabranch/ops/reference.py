# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Plain ``jax.numpy`` oracles: what each operation means, in the fewest lines.

They take the same arguments as the public operations, check nothing, and compute in f32, or in f64
when their floating-point input is f64. The tests compare the engine with them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from anabranch.ops.reference_routing import _wide
from anabranch.ops.reference_routing import combine_rows as combine_rows
from anabranch.ops.reference_routing import gather_rows as gather_rows
from anabranch.ops.reference_routing import ragged_plan as ragged_plan
from anabranch.ops.reference_routing import topk_router as topk_router

# --- ragged products -------------------------------------------------------------------------------


def ragged_dot(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Oracle of ``anabranch.ragged_dot``: every row with a copy of its group's matrix."""
    ends = jnp.cumsum(group_sizes)
    group = (jnp.arange(lhs.shape[0])[:, None] >= ends).sum(axis=1)  # E for the rows of none
    rows = jnp.where((group < rhs.shape[0])[:, None], _wide(lhs), 0)
    return jnp.einsum("mk,mkn->mn", rows, _wide(rhs)[group]).astype(lhs.dtype)


def linear(x: jax.Array, w: jax.Array) -> jax.Array:
    """Oracle of ``anabranch.linear``."""
    w = w.astype(jnp.bfloat16) if x.dtype == jnp.bfloat16 else w
    return (_wide(x) @ _wide(w)).astype(x.dtype)


# --- experts ---------------------------------------------------------------------------------------


# A handler knows an activation by its number here.
ACTIVATIONS = ("swiglu", "geglu", "reglu", "clamped_swiglu")


def gated_activation(activation: str, gate: jax.Array, up: jax.Array) -> jax.Array:
    """The activations of ``anabranch.moe_ffn``, elementwise on equal shapes."""
    if activation == "swiglu":
        return jax.nn.silu(gate) * up
    if activation == "geglu":
        return jax.nn.gelu(gate, approximate=True) * up
    if activation == "reglu":
        return jax.nn.relu(gate) * up
    gate, up = jnp.minimum(gate, 7), jnp.clip(up, -7, 7)  # clamped_swiglu
    return (up + 1) * gate * jax.nn.sigmoid(1.702 * gate)


def moe_ffn(
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    w_gate: jax.Array,
    w_up: jax.Array,
    w_down: jax.Array,
    activation: str = "swiglu",
) -> jax.Array:
    """Oracle of ``anabranch.moe_ffn``: every expert sees every token, weighted by 0 mostly."""
    rows = _wide(x)

    def add_expert(y: jax.Array, expert: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        index, gate, up, down = expert
        hidden = gated_activation(activation, rows @ gate, rows @ up)
        weight = jnp.where(experts == index, weights.astype(rows.dtype), 0).sum(axis=1)
        return y + weight[:, None] * (hidden @ down), None

    ids = jnp.arange(w_gate.shape[0])
    wide = tuple(w.astype(rows.dtype) for w in (w_gate, w_up, w_down))
    return jax.lax.scan(add_expert, jnp.zeros_like(rows), (ids, *wide))[0].astype(x.dtype)


# --- loss ------------------------------------------------------------------------------------------


def linear_cross_entropy(
    x: jax.Array, w: jax.Array, labels: jax.Array, ignore_index: int = -1, z_loss: float = 0.0
) -> jax.Array:
    """Oracle of ``anabranch.linear_cross_entropy``: all logits at once."""
    w = w.astype(jnp.bfloat16) if x.dtype == jnp.bfloat16 else w
    valid = labels != ignore_index
    # Ignored rows must not reach the product: 0 * NaN is NaN.
    logits = jnp.where(valid[:, None], _wide(x), 0) @ _wide(w)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, jnp.where(valid, labels, 0)[:, None], axis=-1)[:, 0]
    return jnp.where(valid, normaliser - picked + z_loss * normaliser**2, 0.0)


# --- attention -------------------------------------------------------------------------------------


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    scale: float,
    causal: bool = True,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """Oracle of ``anabranch.attention``: every score at once, [B, M, N / M, S, S]."""
    batch, length, heads, size = query.shape
    grouped = _wide(query).reshape(batch, length, key.shape[2], -1, size)
    scores = jnp.einsum("bsmgd,btmd->bmgst", grouped, _wide(key)) * scale
    seen = jnp.ones((1, length, length), bool)
    if causal:
        seen = jnp.tril(seen)
    if segment_ids is not None:
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        seen = seen & same & (segment_ids != 0)[:, None, :]
    seen = seen[:, None, None]
    # A position that sees nothing has shares 0: the softmax sees finite scores all the same.
    shares = jnp.where(seen, jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1), 0)
    mixed = jnp.einsum("bmgst,btmd->bsmgd", shares, _wide(value))
    return mixed.reshape(batch, length, heads, -1).astype(query.dtype)


# --- optimizer -------------------------------------------------------------------------------------


def adamw(
    scalars: jax.Array, gradient: jax.Array, parameter: jax.Array, m: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Oracle of one parameter's step of ``anabranch.ops.adamw``, applied or not."""
    clip_factor, rate, beta1, rest1, beta2, rest2, epsilon, decay, fix1, fix2, applied = scalars
    g = clip_factor * gradient
    new_m = beta1 * m + rest1 * g
    new_v = beta2 * v + rest2 * g * g
    direction = fix1 * new_m / (jnp.sqrt(fix2 * new_v) + epsilon)
    new = (parameter - rate * (direction + decay * parameter), new_m, new_v)
    return jax.tree.map(lambda a, b: jnp.where(applied != 0, a, b), new, (parameter, m, v))


# --- normalisation ---------------------------------------------------------------------------------


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float = 1e-6) -> jax.Array:
    """Oracle of ``rms_norm`` of ``anabranch.ops.rms_norm``; the result is not rounded."""
    wide = _wide(x)
    return wide / jnp.sqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon) * _wide(weight)


# --- optimizer -------------------------------------------------------------------------------------


def orthogonalise(matrices: jax.Array, iterations: int = 5) -> jax.Array:
    """Oracle of Muon's direction: quintic Newton-Schulz iterations on [..., M, N]."""
    x = _wide(matrices)
    x = x / (jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True)) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x
