# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Plain ``jax.numpy`` oracles of the router, the plan and the row operations; see reference.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from anabranch.ops.ragged_plan import RaggedPlan
from anabranch.ops.router import Routing

# --- routing ---------------------------------------------------------------------------------------


def topk_router(
    logits: jax.Array,
    topk: int,
    *,
    score_function: str = "softmax",
    expert_bias: jax.Array | None = None,
    num_groups: int = 1,
    group_topk: int = 1,
    group_score: str | int = "top2",
    normalize: bool = False,
    scaling_factor: float = 1.0,
) -> Routing:
    """Oracle of ``anabranch.topk_router``."""
    x = _wide(logits)  # [T, E]
    scores = {
        "softmax": lambda: jax.nn.softmax(x, axis=-1),
        "softmax_topk": lambda: jax.nn.softmax(x, axis=-1),
        "sigmoid": lambda: jax.nn.sigmoid(x),
        "sqrtsoftplus": lambda: jnp.sqrt(jax.nn.softplus(x)),
    }[score_function]()
    ranked = jax.lax.stop_gradient(x if score_function == "softmax_topk" else scores)
    if expert_bias is not None:
        ranked = ranked + jax.lax.stop_gradient(expert_bias.astype(x.dtype))
    if group_topk < num_groups:
        ranked = _mask_groups(ranked, num_groups, group_topk, group_score)
    experts = _best(ranked, topk)  # [T, k]
    if score_function == "softmax_topk":
        weights = jax.nn.softmax(jnp.take_along_axis(x, experts, axis=-1), axis=-1)
    else:
        weights = jnp.take_along_axis(scores, experts, axis=-1)
    if normalize:
        total = weights.sum(axis=-1, keepdims=True)
        weights = weights / jnp.where(total == 0, 1, total)
    return Routing(experts, weights * scaling_factor, scores)


def _mask_groups(
    ranked: jax.Array, num_groups: int, group_topk: int, group_score: str | int
) -> jax.Array:
    tokens, num_experts = ranked.shape
    grouped = ranked.reshape(tokens, num_groups, num_experts // num_groups)
    count = {"max": 1, "top2": 2}.get(group_score, group_score)
    ordered = jnp.take_along_axis(grouped, _best(grouped, count), axis=-1)
    total = ordered[..., 0]
    for i in range(1, count):
        total = total + ordered[..., i]
    chosen = _best(total, group_topk)  # [T, group_topk]
    keep = (chosen[..., None] == jnp.arange(num_groups)).any(axis=1)
    return jnp.where(keep[..., None], grouped, -jnp.inf).reshape(tokens, num_experts)


def _best(values: jax.Array, count: int) -> jax.Array:
    """Indices of the ``count`` largest values, NaN above all, ties to the lowest index."""
    # Two stable sorts: by value, then NaN first. Adding 0 makes -0 equal to +0.
    number = jnp.where(jnp.isnan(values), jnp.inf, values) + 0.0
    order = jnp.argsort(-number, axis=-1, stable=True)
    is_number = ~jnp.isnan(jnp.take_along_axis(values, order, axis=-1))
    order = jnp.take_along_axis(order, jnp.argsort(is_number, axis=-1, stable=True), axis=-1)
    return order[..., :count].astype(jnp.int32)


# --- ragged plan, rows -----------------------------------------------------------------------------


def ragged_plan(experts: jax.Array, num_experts: int, *, num_rows: int | None = None) -> RaggedPlan:
    """Oracle of ``anabranch.ragged_plan``; ids must be in range and the rows must suffice."""
    tokens, topk = experts.shape
    slots = tokens * topk
    rows = slots if num_rows is None else num_rows
    flat = experts.reshape(-1)
    routed = flat >= 0
    order = jnp.argsort(jnp.where(routed, flat, num_experts), stable=True)  # row -> slot
    row_of_slot = jnp.zeros(slots, jnp.int32).at[order].set(jnp.arange(slots, dtype=jnp.int32))
    slot_row = jnp.where(routed, row_of_slot, -1).reshape(tokens, topk)
    matches = flat[:, None] == jnp.arange(num_experts)
    group_sizes = matches.sum(axis=0, dtype=jnp.int32)
    group_offsets = jnp.pad(jnp.cumsum(group_sizes, dtype=jnp.int32), (1, 0))
    row_token = jnp.full(rows, -1, jnp.int32)
    used = min(rows, slots)
    if used:
        token = (order[:used] // topk).astype(jnp.int32)
        token = jnp.where(jnp.arange(used) < group_offsets[-1], token, -1)
        row_token = row_token.at[:used].set(token)
    return RaggedPlan(group_sizes, group_offsets, row_token, slot_row)


def gather_rows(
    x: jax.Array, plan: RaggedPlan, weights: jax.Array | None = None
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Oracle of ``anabranch.gather_rows``."""
    routed = plan.row_token >= 0
    token = jnp.where(routed, plan.row_token, 0)
    if x.shape[0]:
        rows = jnp.where(routed[:, None], x[token], 0)
    else:
        rows = jnp.zeros((plan.row_token.shape[0], x.shape[1]), x.dtype)
    if weights is None:
        return rows
    num_rows = plan.row_token.shape[0]
    target = jnp.where(plan.slot_row < 0, num_rows, plan.slot_row)
    zeros = jnp.zeros(num_rows, _wide(weights).dtype)
    return rows, zeros.at[target].set(_wide(weights), mode="drop")


def combine_rows(rows: jax.Array, plan: RaggedPlan, weights: jax.Array | None = None) -> jax.Array:
    """Oracle of ``anabranch.combine_rows``."""
    tokens, topk = plan.slot_row.shape
    total = jnp.zeros((tokens, rows.shape[1]), _wide(rows).dtype)
    if rows.shape[0] == 0 or tokens == 0:
        return total.astype(rows.dtype)
    # Rows ascend by expert, so ascending row numbers are ascending experts; -1 goes last.
    sort_key = jnp.where(plan.slot_row < 0, jnp.iinfo(jnp.int32).max, plan.slot_row)
    order = jnp.argsort(sort_key, axis=1, stable=True)
    slot_row = jnp.take_along_axis(plan.slot_row, order, axis=1)
    for slot in range(topk):
        row = slot_row[:, slot]
        value = _wide(rows)[jnp.maximum(row, 0)]
        if weights is not None:
            weight = jnp.take_along_axis(_wide(weights), order[:, slot : slot + 1], axis=1)
            value = value * weight
        total = total + jnp.where((row >= 0)[:, None], value, 0)
    return total.astype(rows.dtype)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
