# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from anabranch.layers.columns import cut, join
from anabranch.layers.config import AttentionConfig, RotaryConfig
from anabranch.layers.initializers import Shape, initialise
from anabranch.layers.norm import rms_norm
from anabranch.layers.rotary import apply_rotary, softmax_scale
from anabranch.ops.attention import attention
from anabranch.ops.linear import linear

Params = dict[str, Any]


def mla_init(key: jax.Array, hidden_size: int, config: AttentionConfig, scale: float) -> Params:
    """Returns the parameters of one block, f32, of `mla_shapes`."""
    return initialise(key, mla_shapes(hidden_size, config), scale)


def mla_shapes(hidden_size: int, config: AttentionConfig) -> dict[str, Shape]:
    """Returns the shape of each parameter: the published layout, transposed to [in, out].

    `q` [H, N * (nope + rope)], or `q_a` [H, rank], `q_a_norm`, `q_b` [rank, N * (nope + rope)];
    `kv_a` [H, kv_rank + rope], `kv_a_norm`, `kv_b` [kv_rank, N * (nope + value)];
    `o` [N * value, H]. Each head's columns are (nope, rope) and (nope, value) in this order.
    """
    heads, rank, kv_rank = config.num_heads, config.q_lora_rank, config.kv_lora_rank
    query = heads * config.query_key_size
    shapes: dict[str, Shape] = {
        "kv_a": (hidden_size, kv_rank + config.rope_head_size),
        "kv_a_norm": (kv_rank,),
        "kv_b": (kv_rank, heads * (config.nope_head_size + config.value_head_size)),
        "o": (heads * config.value_head_size, hidden_size),
    }
    if not rank:
        return shapes | {"q": (hidden_size, query)}
    return shapes | {"q_a": (hidden_size, rank), "q_a_norm": (rank,), "q_b": (rank, query)}


def mla(
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

    x [B, S, H] bf16 or f32; `table` is `rotary_table(positions, config.rope_head_size, rotary)`;
    `segment_ids` i32 [B, S] or None for one segment.
    """
    with jax.named_scope("mla"):
        query = _query(params, x, config, table, epsilon)
        key, value = _key_value(params, x, config, table, epsilon)
        scale = softmax_scale(config.query_key_size, rotary)
        mixed = attention(query, key, value, scale=scale, segment_ids=segment_ids)
        return linear(mixed.reshape(*x.shape[:-1], -1), params["o"])


def _query(
    params: Params,
    x: jax.Array,
    config: AttentionConfig,
    table: tuple[jax.Array, jax.Array],
    epsilon: float,
) -> jax.Array:
    if config.q_lora_rank:
        latent = rms_norm(linear(x, params["q_a"]), params["q_a_norm"], epsilon)
        query = linear(latent, params["q_b"])
    else:
        query = linear(x, params["q"])
    query = query.reshape(*x.shape[:-1], config.num_heads, config.query_key_size)
    plain, turning = cut(query, config.nope_head_size)
    return join(plain, apply_rotary(turning, table, interleaved=True))


def _key_value(
    params: Params,
    x: jax.Array,
    config: AttentionConfig,
    table: tuple[jax.Array, jax.Array],
    epsilon: float,
) -> tuple[jax.Array, jax.Array]:
    compressed = linear(x, params["kv_a"])
    latent, turning = cut(compressed, config.kv_lora_rank)
    latent = rms_norm(latent, params["kv_a_norm"], epsilon)
    expanded = linear(latent, params["kv_b"]).reshape(*x.shape[:-1], config.num_heads, -1)
    plain, value = cut(expanded, config.nope_head_size)
    turned = apply_rotary(turning[..., None, :], table, interleaved=True)
    turned = jnp.broadcast_to(turned, (*plain.shape[:-1], config.rope_head_size))
    return join(plain, turned), value
