# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""anabranch.ops.adamw against optax's formulas in f64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anabranch.ops import reference
from anabranch.ops.adamw import adamw, sum_of_squares

EPS = np.finfo(np.float32).eps
SETTINGS = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}


def mask(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


def rate(count):
    return 0.01 / (1.0 + count)


def problem(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"a": (7, 33), "b": [(5,), ()], "c": (2, 1, 3, 1, 2), "d": (0, 4), "e": (300, 401)}
    make = functools.partial(jax.tree.map, is_leaf=lambda shape: isinstance(shape, tuple))
    return [
        make(lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32), shapes)
        for _ in range(5)
    ]


def in_f64(params, gradients, factor):
    """Parameters and moments after all gradients, leaf by leaf in f64, as optax.adamw has them."""
    decayed = mask(params)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    m, v = (jax.tree.map(np.zeros_like, params) for _ in range(2))
    b1, b2 = SETTINGS["beta1"], SETTINGS["beta2"]
    for t, gradient in enumerate(gradients, 1):
        g = jax.tree.map(lambda leaf: factor * np.asarray(leaf, np.float64), gradient)
        m = jax.tree.map(lambda old, new: b1 * old + (1 - b1) * new, m, g)
        v = jax.tree.map(lambda old, new: b2 * old + (1 - b2) * new**2, v, g)

        def move(p, m, v, decay, t=t):
            direction = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + SETTINGS["epsilon"])
            return p - rate(t - 1) * (direction + SETTINGS["weight_decay"] * decay * p)

        params = jax.tree.map(move, params, m, v, decayed)
    return params, m, v


def test_steps_match_optax_formulas_in_f64() -> None:
    params, *gradients = problem()
    optimizer = adamw(rate, mask=mask, **SETTINGS)
    wanted = in_f64(params, gradients, np.float64(np.float32(0.3)))
    state = optimizer.init(params)
    step = jax.jit(optimizer.step)
    for gradient in gradients:
        params, state = step(gradient, state, params, jnp.float32(0.3))
    assert int(state[0].count) == int(state[2].count) == len(gradients)
    # Four steps, each with 12 roundings relative to its terms; m may cancel against terms of size
    # 1.5 (5 sigma of 0.3), so that an update of at most 0.01 * 3 is off by as much.
    for got, want in zip((params, state[0].mu, state[0].nu), wanted, strict=True):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=4 * 12 * EPS, atol=4 * 12 * EPS * 0.1)


def test_one_leaf_matches_the_jnp_oracle() -> None:
    gradient, parameter, m, v, _ = (part["e"] for part in problem(3))
    factors = (0.5, 0.01, 0.9, 0.1, 0.95, 0.05, 1e-8, 0.1, 2.0, 3.0)
    for applied in (0.0, 1.0):
        scalars = jnp.asarray((*factors, applied), jnp.float32)
        from anabranch.ops.adamw import _leaf

        got = _leaf(scalars, gradient, parameter, m, v * v, emit_update=False)
        want = reference.adamw(scalars, gradient, parameter, m, v * v)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=12 * EPS, atol=12 * EPS)


def test_update_is_that_of_optax_and_equals_the_step_bit_for_bit() -> None:
    params, first, second, *_ = problem(1)
    names = {"b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    plain = optax.adamw(rate, mask=mask, mu_dtype=jnp.float32, **names)
    optimizer = adamw(rate, mask=mask, **SETTINGS)
    state, plain_state = optimizer.init(params), plain.init(params)
    assert jax.tree.structure(state) == jax.tree.structure(plain_state)
    for gradient in (first, second):
        updates, next_state = jax.jit(optimizer.update)(gradient, state, params)
        want, plain_state = jax.jit(plain.update)(gradient, plain_state, params)
        # optax computes 1 - beta**t in f32: 1 - 0.95 has lost a factor of 20.
        for a, b in zip(jax.tree.leaves(updates), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=100 * EPS, atol=0.01 * 100 * EPS)
        stepped, step_state = jax.jit(optimizer.step)(gradient, state, params)
        added = optax.apply_updates(params, updates)
        jax.tree.map(np.testing.assert_array_equal, (stepped, step_state), (added, next_state))
        params, state = stepped, next_state


def test_works_in_a_chain_and_with_a_constant_rate() -> None:
    params, gradient, *_ = problem(2)
    chain = optax.chain(optax.clip_by_global_norm(1.0), adamw(1e-3))
    updates, _ = jax.jit(chain.update)(gradient, chain.init(params), params)
    moved = jax.tree.leaves(optax.apply_updates(params, updates))
    assert all(np.isfinite(leaf).all() for leaf in moved)
    with pytest.raises(ValueError, match="adamw: update needs params"):
        adamw(1e-3).update(gradient, adamw(1e-3).init(params))


def test_d10_a_skipped_step_keeps_every_bit() -> None:
    params, gradient, *_ = problem(4)
    optimizer = adamw(rate, mask=mask, **SETTINGS)
    params, state = jax.jit(optimizer.step)(gradient, optimizer.init(params), params)
    kept = jax.tree.map(lambda leaf: np.array(leaf, copy=True), (params, state))
    poison = jax.tree.map(lambda leaf: leaf * jnp.nan, gradient)
    step = jax.jit(optimizer.step, donate_argnums=(1, 2))
    params, state = step(poison, state, params, jnp.float32(jnp.nan), jnp.bool_(False))
    jax.tree.map(np.testing.assert_array_equal, (params, state), kept)


def test_donated_state_is_overwritten_in_place() -> None:
    params = {"w": jnp.ones((512, 512))}
    optimizer = adamw(1e-3, **SETTINGS)
    state = optimizer.init(params)
    gradient = {"w": jnp.full((512, 512), 0.5)}
    where = [leaf.unsafe_buffer_pointer() for leaf in (params["w"], state[0].mu["w"])]

    # JAX pairs donated arguments with results in their order.
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, gradient):
        return optimizer.step(gradient, state, params)

    params, state = step(params, state, gradient)
    assert where == [leaf.unsafe_buffer_pointer() for leaf in (params["w"], state[0].mu["w"])]
    # A caller that donates nothing keeps its arrays.
    jax.jit(optimizer.step)(gradient, state, params)
    np.testing.assert_allclose(params["w"], 1 - 1e-3 * 1.1, rtol=1e-6)


def test_sum_of_squares_by_row() -> None:
    values = jnp.asarray(np.random.default_rng(5).normal(size=(3, 7, 11)), jnp.float32)
    got = jax.jit(lambda x: sum_of_squares(x, by_row=True))(values)
    np.testing.assert_array_equal(got, [sum_of_squares(row) for row in values])


def test_sum_of_squares() -> None:
    for shape in ((), (0,), (70_001,), (3, 5, 1, 2, 2)):
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        want = np.sum(values.astype(np.float64) ** 2)
        got = jax.jit(sum_of_squares)(values)
        # Sums of at most 16384 / 64 + 64 positive terms, then f64.
        np.testing.assert_allclose(got, want, rtol=320 * EPS)
    with pytest.raises(ValueError, match=r"int32\[3\]"):
        sum_of_squares(jnp.arange(3))


def test_wrong_leaves_are_printed() -> None:
    params = {"w": jnp.ones((2, 3))}
    optimizer = adamw(1e-3)
    with pytest.raises(ValueError, match=r"gradient bfloat16\[2, 3\], parameter float32\[2, 3\]"):
        optimizer.step({"w": jnp.ones((2, 3), jnp.bfloat16)}, optimizer.init(params), params)
