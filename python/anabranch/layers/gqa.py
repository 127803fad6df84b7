# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention (arXiv 2305.13245), optionally with normalised queries and keys."""

from __future__ import annotations

from typing import Any

import jax

from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.layers.initializers import Shape, initialise
from anabranch.layers.norm import rms_norm
from anabranch.layers.rotary import apply_rotary, softmax_scale
from anabranch.ops.attention import attention
from anabranch.ops.linear import linear

Params = dict[str, Any]


def gqa_init(key: jax.Array, hidden_size: int, config: AttentionConfig, scale: float) -> Params:
    """Returns the parameters of one block, f32, of `gqa_shapes`."""
    return initialise(key, gqa_shapes(hidden_size, config), scale)


def gqa_shapes(hidden_size: int, config: AttentionConfig) -> dict[str, Shape]:
    """Returns the shape of each parameter.

    `q` [H, N * D], `k` and `v` [H, N_kv * D], `o` [N * D, H]; with qk_norm "head" `q_norm` and
    `k_norm` [D], with "full" [N * D] and [N_kv * D].
    """
    query, shared = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: dict[str, Shape] = {
        "q": (hidden_size, query),
        "k": (hidden_size, shared),
        "v": (hidden_size, shared),
        "o": (query, hidden_size),
    }
    if config.qk_norm == "head":
        return shapes | {"q_norm": (config.head_size,), "k_norm": (config.head_size,)}
    if config.qk_norm == "full":
        return shapes | {"q_norm": (query,), "k_norm": (shared,)}
    return shapes


def gqa(
    params: Params,
    x: jax.Array,
    config: AttentionConfig,
    *,
    rotary: RotaryConfig,
    table: tuple[jax.Array, jax.Array],
    segment_ids: jax.Array | None = None,
    epsilon: float = 1e-6,
) -> jax.Array:
    """Returns the block's output [B, S, H] in x's type, causal within each segment.

    x [B, S, H] bf16 or f32; `table` is `rotary_table(positions, config.head_size, rotary)`;
    `segment_ids` i32 [B, S] or None for one segment. Pairs of the rotary embedding are halves.
    """
    with jax.named_scope("gqa"):
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        projected = {name: linear(x, params[name]) for name in heads}
        if config.qk_norm == "full":
            projected |= _normalised(params, projected, epsilon)
        split = {
            name: projected[name].reshape(*x.shape[:-1], count, config.head_size)
            for name, count in heads.items()
        }
        if config.qk_norm == "head":
            split |= _normalised(params, split, epsilon)
        query, key = (apply_rotary(split[n], table, interleaved=False) for n in ("q", "k"))
        scale = softmax_scale(config.head_size, rotary)
        mixed = attention(query, key, split["v"], scale=scale, segment_ids=segment_ids)
        return linear(mixed.reshape(*x.shape[:-1], -1), params["o"])


def _normalised(
    params: Params, parts: dict[str, jax.Array], epsilon: float
) -> dict[str, jax.Array]:
    return {name: rms_norm(parts[name], params[f"{name}_norm"], epsilon) for name in ("q", "k")}
