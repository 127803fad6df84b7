# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Muon for matrices, AdamW for everything else, in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from anabranch import _register
from anabranch.ops.adamw import AdamW

# Results take the memory of: parameter, m; or of the gradient instead of the parameter.
_STEP_ALIASES = {2: 0, 3: 1}
_UPDATE_ALIASES = {1: 0, 3: 1}


def muon(
    learning_rate: float | optax.Schedule,
    others: AdamW,
    is_matrix: Callable[[Any, Any], bool],
    *,
    beta: float = 0.95,
    weight_decay: float = 0.1,
    iterations: int = 5,
) -> AdamW:
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) beside AdamW.

    A matrix moves by `-rate * (0.2 * sqrt(max(M, N)) * orthogonal(u) + weight_decay * p)`, u the Nesterov
    momentum of its gradient and orthogonal() five quintic Newton-Schulz iterations: about `U V^T` of
    u's singular value decomposition `U S V^T`. [E, M, N] is E matrices, each expert's for itself. The
    factor gives updates the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982, section
    2.2), so that one learning rate serves both.

    Args:
      learning_rate: a number, or a function of the number of steps that were applied before.
      others: `anabranch.ops.adamw.adamw`, of the same learning rate, for all other parameters.
      is_matrix: of a key path and a parameter: whether Muon moves it. It must have 2 or 3 axes.
      beta: decay of the momentum.
      weight_decay: factor of the parameter.
      iterations: Newton-Schulz iterations.

    Returns:
      An `AdamW`, with the state of `others`; a matrix's `mu` is its momentum and its `nu` is empty.
      ValueError for a parameter that `is_matrix` names and that is no f32 matrix.
    """

    def flags(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(is_matrix, params)

    def init(params: Any) -> Any:
        matrix = flags(params)
        adam, *rest = others.init(_without(matrix, params))
        momenta = jax.tree.map(jnp.zeros_like, _without(_inverted(matrix), params))
        nothing = jax.tree.map(lambda _: jnp.zeros((0,), jnp.float32), momenta)
        mu, nu = _merged(matrix, momenta, adam.mu), _merged(matrix, nothing, adam.nu)
        return (adam._replace(mu=mu, nu=nu), *rest)

    def run(gradients: Any, state: Any, params: Any, clip_factor: Any, applied: Any) -> Any:
        """Results of both halves: trees of (new parameter or update, new momentum), and AdamW's."""
        emit_update = clip_factor is None
        matrix, (adam, *rest) = flags(params), state
        kept = adam._replace(mu=_without(matrix, adam.mu), nu=_without(matrix, adam.nu))
        theirs = (_without(matrix, gradients), (kept, *rest), _without(matrix, params))
        if emit_update:
            clip_factor, applied = 1.0, True
            moved = others.update(*theirs)
        else:
            moved = others.step(*theirs, clip_factor, applied)
        rate = learning_rate(rest[1].count) if callable(learning_rate) else learning_rate

        def leaf(gradient: jax.Array, parameter: jax.Array, momentum: jax.Array) -> Any:
            scale = 0.2 * math.sqrt(max(parameter.shape[-2:]))
            numbers = (clip_factor, rate, beta, 1 - beta, scale, weight_decay, applied)
            scalars = jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])
            return _move(scalars, gradient, parameter, momentum, iterations, emit_update)

        mine = [_without(_inverted(matrix), tree) for tree in (gradients, params, adam.mu)]
        pairs = jax.tree.map(leaf, *mine)
        out, mu = (jax.tree.map(lambda _, pair, i=i: pair[i], mine[1], pairs) for i in range(2))
        new, (kept, *rest) = moved
        nu = _merged(matrix, _without(_inverted(matrix), adam.nu), kept.nu)
        adam = kept._replace(mu=_merged(matrix, mu, kept.mu), nu=nu)
        return _merged(matrix, out, new), (adam, *rest)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("muon: update needs params: weight decay depends on them")
        return run(gradients, state, params, None, None)

    def step(
        gradients: Any, state: Any, params: Any, clip_factor: Any = 1.0, applied: Any = True
    ) -> tuple[Any, Any]:
        return run(gradients, state, params, clip_factor, jnp.asarray(applied, bool))

    return AdamW(init, update, step)


def _move(
    scalars: jax.Array,
    gradient: jax.Array,
    parameter: jax.Array,
    momentum: jax.Array,
    iterations: int,
    emit_update: bool,
) -> tuple[jax.Array, jax.Array]:
    arrays = (gradient, parameter, momentum)
    fits = all(a.dtype == jnp.float32 and a.shape == parameter.shape for a in arrays)
    if not fits or parameter.ndim not in (2, 3):
        text = ", ".join(f"{a.dtype}{[*a.shape]}" for a in arrays)
        raise ValueError(
            f"muon: gradient, parameter, momentum {text}; must be float32 [M, N] or [E, M, N]"
        )
    stacked = [a.reshape(-1, *a.shape[-2:]) for a in arrays]
    results = _register.call(
        "muon",
        [jax.ShapeDtypeStruct(stacked[0].shape, jnp.float32)] * 2,
        scalars,
        *stacked,
        aliases=_UPDATE_ALIASES if emit_update else _STEP_ALIASES,
        emit_update=emit_update,
        iterations=iterations,
    )
    return tuple(result.reshape(parameter.shape) for result in results)


def _inverted(matrix: Any) -> Any:
    return jax.tree.map(lambda flag: not flag, matrix)


def _without(matrix: Any, tree: Any) -> Any:
    """`tree` with None, which is no leaf, where `matrix` is true."""
    return jax.tree.map(lambda flag, leaf: None if flag else leaf, matrix, tree)


def _merged(matrix: Any, mine: Any, theirs: Any) -> Any:
    """The leaves of `mine` where `matrix` is true, those of `theirs` elsewhere."""
    sources = {True: iter(jax.tree.leaves(mine)), False: iter(jax.tree.leaves(theirs))}
    return jax.tree.map(lambda flag: next(sources[bool(flag)]), matrix)
