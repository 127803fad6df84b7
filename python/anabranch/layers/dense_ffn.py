# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The dense feed-forward block, SwiGLU (arXiv 2002.05202)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from anabranch.layers.initializers import normal_tree
from anabranch.ops.linear import linear

Params = dict[str, Any]


def dense_ffn_init(key: jax.Array, hidden_size: int, width: int, scale: float) -> Params:
    """Returns `w_gate`, `w_up` [H, width] and `w_down` [width, H], f32."""
    shapes = {
        "w_gate": (hidden_size, width),
        "w_up": (hidden_size, width),
        "w_down": (width, hidden_size),
    }
    return normal_tree(key, shapes, scale)


def dense_ffn(params: Params, x: jax.Array) -> jax.Array:
    """Returns `(silu(x w_gate) * (x w_up)) w_down` [..., H] in x's type; x [..., H] bf16 or f32.

    The activation is computed in f32 and rounded once.
    """
    with jax.named_scope("dense_ffn"):
        gate = linear(x, params["w_gate"]).astype(jnp.float32)
        up = linear(x, params["w_up"]).astype(jnp.float32)
        return linear((jax.nn.silu(gate) * up).astype(x.dtype), params["w_down"])
