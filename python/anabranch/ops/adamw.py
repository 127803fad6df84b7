# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""AdamW in one pass over parameter, moments and gradient, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from anabranch import _register

# Results take the memory of: parameter, m, v; or of the gradient instead of the parameter.
_STEP_ALIASES = {2: 0, 3: 1, 4: 2}
_UPDATE_ALIASES = {1: 0, 3: 1, 4: 2}


class AdamW(optax.GradientTransformation):
    """An `optax.GradientTransformation` that can also write the new parameters itself.

    `init(params)` and `update(gradients, state, params) -> (updates, state)` are those of
    `optax.adamw`, with its state. `step` does both halves of an optimizer step at once, and parameters
    and moments that the caller donates are overwritten where they lie (JAX pairs donated arguments
    with results in their order, so give and return params and state in the same one):

    `step(gradients, state, params, clip_factor=1.0, applied=True) -> (params, state)`

    clip_factor (f32 scalar) multiplies every gradient. Where applied (bool scalar) is false the step
    does not happen: params and state come back bit for bit, whatever the gradients hold. The same
    bits for any number of threads and on every instruction set, and the same as
    `optax.apply_updates(params, updates)`.
    """

    step: Callable[..., tuple[Any, Any]]

    def __new__(cls, init: Any, update: Any, step: Any) -> AdamW:  # noqa: D102
        self = super().__new__(cls, init, update)
        self.step = step
        return self


def adamw(
    learning_rate: float | optax.Schedule,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 1e-4,
    mask: Callable[[Any], Any] | None = None,
) -> AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) for f32 parameters of any shapes.

    `p -= rate * (m_hat / (sqrt(v_hat) + epsilon) + weight_decay * p)`, with m and v moving averages of
    the gradient and its square, and hats for their bias correction by 1 / (1 - beta**t).

    Args:
      learning_rate: a number, or a function of the number of steps that were applied before.
      beta1: decay of m.
      beta2: decay of v.
      epsilon: added to the square root.
      weight_decay: factor of the parameter, where it decays.
      mask: maps params to a pytree of bools: which decay. None: all of them.

    Returns:
      An `AdamW`. Its functions raise ValueError for a leaf that is not f32, or whose gradient has
      another shape.
    """
    chain = optax.adamw(
        learning_rate, beta1, beta2, epsilon, weight_decay=weight_decay, mask=mask,
        mu_dtype=jnp.float32,
    )  # fmt: skip

    def run(
        gradients: Any, state: Any, params: Any, clip_factor: Any, applied: Any, emit_update: bool
    ) -> tuple[Any, Any]:
        adam, decay, schedule = state
        applied = jnp.asarray(applied, bool)
        rate = learning_rate(schedule.count) if callable(learning_rate) else learning_rate
        count = jnp.where(applied, optax.safe_increment(adam.count), adam.count)
        # 1 - beta**t without cancellation; t is at least 1 in a step that is skipped, too.
        age = jnp.maximum(count, 1).astype(jnp.float32)
        fix1, fix2 = (
            -1 / jnp.expm1(age * math.log(beta)) if beta else 1 for beta in (beta1, beta2)
        )

        def scalars(decayed: bool) -> jax.Array:
            factor = weight_decay if decayed else 0.0
            rest = (beta1, 1 - beta1, beta2, 1 - beta2, epsilon, factor, fix1, fix2, applied)
            return jnp.stack([jnp.asarray(x, jnp.float32) for x in (clip_factor, rate, *rest)])

        by_decay = {decayed: scalars(decayed) for decayed in (True, False)}
        decays = jax.tree.map(lambda _: True, params) if mask is None else mask(params)
        new = jax.tree.map(
            lambda decayed, *arrays: _leaf(by_decay[bool(decayed)], *arrays, emit_update),
            decays, gradients, params, adam.mu, adam.nu,
        )  # fmt: skip
        out, mu, nu = (jax.tree.map(lambda _, leaf, i=i: leaf[i], decays, new) for i in range(3))
        if callable(learning_rate):
            schedule = schedule._replace(
                count=jnp.where(applied, optax.safe_increment(schedule.count), schedule.count)
            )
        return out, (adam._replace(count=count, mu=mu, nu=nu), decay, schedule)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("adamw: update needs params: weight decay depends on them")
        return run(gradients, state, params, 1.0, True, emit_update=True)

    def step(
        gradients: Any, state: Any, params: Any, clip_factor: Any = 1.0, applied: Any = True
    ) -> tuple[Any, Any]:
        return run(gradients, state, params, clip_factor, applied, emit_update=False)

    return AdamW(chain.init, update, step)


def _leaf(
    scalars: jax.Array,
    gradient: jax.Array,
    parameter: jax.Array,
    m: jax.Array,
    v: jax.Array,
    emit_update: bool,
) -> tuple[jax.Array, ...]:
    arrays = (gradient, parameter, m, v)
    if any(array.dtype != jnp.float32 or array.shape != parameter.shape for array in arrays):
        names = ("gradient", "parameter", "m", "v")
        text = ", ".join(f"{n} {a.dtype}{[*a.shape]}" for n, a in zip(names, arrays, strict=True))
        raise ValueError(f"adamw: {text}; must be float32 of one shape")
    flat = [array.reshape(-1) if array.ndim > 4 else array for array in arrays]
    results = _register.call(
        "adamw",
        [jax.ShapeDtypeStruct(flat[0].shape, jnp.float32)] * 3,
        scalars,
        *flat,
        aliases=_UPDATE_ALIASES if emit_update else _STEP_ALIASES,
        emit_update=emit_update,
    )
    return tuple(result.reshape(parameter.shape) for result in results)


def sum_of_squares(values: jax.Array, *, by_row: bool = False) -> jax.Array:
    """Sum of the squares of an f32 array of any shape, f32 scalar; the same bits on any pool.

    With `by_row` one sum for each index of the first axis. Raises ValueError for another dtype.
    """
    if values.dtype != jnp.float32:
        raise ValueError(f"sum_of_squares: values {values.dtype}{[*values.shape]}; must be float32")
    flat = values.reshape(-1) if values.ndim > 4 else values
    shape = values.shape[:1] if by_row else ()
    return _register.call("sum_of_squares", jax.ShapeDtypeStruct(shape, jnp.float32), flat)
