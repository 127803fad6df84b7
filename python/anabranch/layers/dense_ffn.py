# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The dense feed-forward block, SwiGLU (arXiv 2002.05202)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from anabranch.layers.initializers import Shape, initialise
from anabranch.ops.linear import linear

Params = dict[str, Any]


def dense_ffn_init(key: jax.Array, hidden_size: int, width: int, scale: float) -> Params:
    """Returns the parameters of one block, f32, of `dense_ffn_shapes`."""
    return initialise(key, dense_ffn_shapes(hidden_size, width), scale)


def dense_ffn_shapes(hidden_size: int, width: int) -> dict[str, Shape]:
    """Returns the shapes of `w_gate`, `w_up` [H, width] and `w_down` [width, H]."""
    wide = (hidden_size, width)
    return {"w_gate": wide, "w_up": wide, "w_down": wide[::-1]}


def dense_ffn(params: Params, x: jax.Array) -> jax.Array:
    """Returns `(silu(x w_gate) * (x w_up)) w_down` [..., H] in x's type; x [..., H] bf16 or f32.

    The activation is computed in f32 and rounded once.
    """
    with jax.named_scope("dense_ffn"):
        gate = linear(x, params["w_gate"]).astype(jnp.float32)
        up = linear(x, params["w_up"]).astype(jnp.float32)
        return linear((jax.nn.silu(gate) * up).astype(x.dtype), params["w_down"])
