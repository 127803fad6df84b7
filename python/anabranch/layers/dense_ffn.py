# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The dense feed-forward block, SwiGLU (arXiv 2002.05202)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from anabranch.layers.initializers import Shape, initialise
from anabranch.ops.linear import linear
from anabranch.ops.remat import hold

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
        rows = x.reshape(-1, x.shape[-1])  # what is held has the shape that products write
        hidden = _swiglu(linear(rows, params["w_gate"]), linear(rows, params["w_up"]))
        return linear(hidden, params["w_down"]).reshape(x.shape)


def _plain_swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    wide = jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)
    return wide.astype(gate.dtype)


@jax.custom_vjp
def _swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """`silu(gate) * up`, computed in f32 and rounded once.

    Keeps its arguments alone: what XLA would keep is four arrays in f32, written by loops of their own. It also
    finds the sigmoid of both passes to be one and keeps that, unless the second one starts from held arguments.
    """
    return _plain_swiglu(gate, up)


def _swiglu_forward(gate: jax.Array, up: jax.Array) -> tuple[jax.Array, Any]:
    return _plain_swiglu(gate, up), (gate, up)


def _swiglu_backward(kept: Any, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    held = [hold(argument, grad) for argument in kept]
    return jax.vjp(_plain_swiglu, *held)[1](grad)


_swiglu.defvjp(_swiglu_forward, _swiglu_backward)
