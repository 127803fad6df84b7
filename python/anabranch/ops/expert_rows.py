# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What lies between the products of an expert where these are calls of their own.

Each is one call of the engine, and keeps its arguments alone for its gradient: XLA writes the same
arithmetic as several loops with arrays in f32 between them. First-order gradients only. They check
nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops.reference import ACTIVATIONS


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def activate_rows(activation: str, gate: jax.Array, up: jax.Array) -> jax.Array:
    """Returns activation(gate, up) [R, F], computed in f32 and rounded once; gate, up [R, F] f32 or bf16."""
    return _activate_forward(activation, gate, up)[0]


def _activate_forward(activation: str, gate: jax.Array, up: jax.Array) -> tuple[jax.Array, Any]:
    like = jax.ShapeDtypeStruct(gate.shape, gate.dtype)
    code = ACTIVATIONS.index(activation)
    return _register.call("activate_rows", like, gate, up, activation=code), (gate, up)


def _activate_backward(activation: str, kept: Any, hidden_grad: jax.Array) -> tuple[Any, ...]:
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in kept]
    code = ACTIVATIONS.index(activation)
    return tuple(_register.call("activate_rows_grad", like, *kept, hidden_grad, activation=code))


activate_rows.defvjp(_activate_forward, _activate_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def weigh_rows(weights: jax.Array, x: jax.Array, dtype: Any) -> jax.Array:
    """Returns weights[r] * x[r] [R, H] in `dtype` (f32 or bf16), rounded once; weights f32 [R], x f32 [R, H]."""
    return _weigh_forward(weights, x, dtype)[0]


def _weigh_forward(weights: jax.Array, x: jax.Array, dtype: Any) -> tuple[jax.Array, Any]:
    like = jax.ShapeDtypeStruct(x.shape, dtype)
    return _register.call("weigh_rows", like, weights, x), (weights, x)


def _weigh_backward(dtype: Any, kept: Any, out_grad: jax.Array) -> tuple[Any, ...]:
    del dtype
    like = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in kept]
    return tuple(_register.call("weigh_rows_grad", like, *kept, out_grad))


weigh_rows.defvjp(_weigh_forward, _weigh_backward)
