# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Muon against plain jnp, as a GradientTransformation, in place, and in the training step."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anabranch import recipes
from anabranch.errors import UsageError
from anabranch.ops import reference
from anabranch.ops.adamw import adamw
from anabranch.ops.muon import muon
from anabranch.train.step import init_state, make_train_step

RATE, BETA, DECAY = 0.02, 0.9, 0.1


def is_matrix(path, leaf):
    return leaf.ndim >= 2 and "embedding" not in str(path)


def optimizer(rate=RATE):
    others = adamw(rate, weight_decay=DECAY, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p))
    return muon(rate, others, is_matrix, beta=BETA, weight_decay=DECAY)


def tree(seed):
    rng = np.random.default_rng(seed)
    shapes = {"norm": (5,), "w": (24, 40), "experts": (3, 33, 16), "embedding": (7, 5)}
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


def test_matrices_follow_the_plain_formula_and_the_rest_adamw():
    params, gradients = tree(0), [tree(1), tree(2)]
    ours, theirs = (
        optimizer(),
        adamw(RATE, weight_decay=DECAY, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
    )
    state, their_state = ours.init(params), theirs.init(params)
    new, their_new = params, params
    momentum = {name: jnp.zeros_like(params[name]) for name in ("w", "experts")}
    want = dict(params)
    for gradient in gradients:
        new, state = jax.jit(ours.step)(gradient, state, new)
        their_new, their_state = jax.jit(theirs.step)(gradient, their_state, their_new)
        for name in momentum:
            momentum[name] = BETA * momentum[name] + (1 - BETA) * gradient[name]
            nesterov = BETA * momentum[name] + (1 - BETA) * gradient[name]
            direction = reference.orthogonalise(nesterov)
            scale = 0.2 * math.sqrt(max(direction.shape[-2:]))
            want[name] = want[name] - RATE * (scale * direction + DECAY * want[name])
            np.testing.assert_allclose(state[0].mu[name], momentum[name], rtol=1e-5, atol=1e-6)
            # bf16 multiplicands: a direction has singular values of about 1 and is off by some
            # roundings of 2^-9, amplified at most by the polynomial's slope, 4, in each of the last
            # two iterations (earlier ones are damped: it is flat near 1).
            error = jnp.linalg.norm(new[name] - want[name], axis=(-2, -1))
            side = min(direction.shape[-2:])
            assert float(error.max()) <= 2 * RATE * scale * math.sqrt(side) * 16 * 2.0**-8
    for name in ("norm", "embedding"):
        np.testing.assert_array_equal(new[name], their_new[name])
    assert state[0].nu["w"].shape == (0,) and int(state[0].count) == 2


def test_updates_have_singular_values_near_one():
    # Tall and wide, of condition numbers up to 10: five iterations bring all values to 0.7 to 1.2.
    rng = np.random.default_rng(0)
    for shape in ((2, 40, 16), (2, 16, 40), (64, 64)):
        u, _, v = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
        values = np.geomspace(1, 0.1, min(shape[-2:]))
        gradient = {"w": jnp.asarray(u * values @ v, jnp.float32)}
        params = {"w": jnp.zeros(shape, jnp.float32)}
        opt = muon(1.0, adamw(1.0), is_matrix, beta=0.0, weight_decay=0.0)
        updates, _ = jax.jit(opt.update)(gradient, opt.init(params), params)
        singular = np.linalg.svd(-updates["w"], compute_uv=False) / (
            0.2 * math.sqrt(max(shape[-2:]))
        )
        assert 0.65 < singular.min() and singular.max() < 1.25, singular


def test_is_a_gradient_transformation_with_schedule():
    rate = optax.linear_schedule(0.1, 0.0, 4)
    opt, params = optimizer(rate), tree(0)
    assert isinstance(opt, optax.GradientTransformation)
    state = opt.init(params)
    updates, new_state = jax.jit(opt.update)(tree(1), state, params)
    by_update = optax.apply_updates(params, updates)
    by_step, step_state = jax.jit(opt.step)(tree(1), state, params)
    jax.tree.map(np.testing.assert_array_equal, by_update, by_step)
    jax.tree.map(np.testing.assert_array_equal, new_state, step_state)
    assert int(new_state[2].count) == 1
    with pytest.raises(ValueError, match="needs params"):
        opt.update(tree(1), state)


def test_a_skipped_step_keeps_every_bit():
    opt, params = optimizer(), tree(0)
    state = opt.init(params)
    poison = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    kept = opt.step(poison, state, params, jnp.float32(jnp.nan), jnp.bool_(False))
    jax.tree.map(np.testing.assert_array_equal, kept, (params, state))


def test_donated_state_is_overwritten_in_place():
    params = {"w": jnp.ones((4, 64, 64))}
    opt = muon(1e-3, adamw(1e-3), is_matrix)
    state = opt.init(params)
    where = [leaf.unsafe_buffer_pointer() for leaf in (params["w"], state[0].mu["w"])]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, gradient):
        return opt.step(gradient, state, params)

    params, state = step(params, state, {"w": jnp.full((4, 64, 64), 0.5)})
    assert where == [leaf.unsafe_buffer_pointer() for leaf in (params["w"], state[0].mu["w"])]


def test_the_training_step_learns_with_it():
    recipe = recipes.override(
        recipes.get("smoke"), ["train.optimizer=muon", "train.warmup_steps=0"]
    )
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (8, 64)), jnp.int32)
    batch = {"tokens": tokens, "labels": tokens, "segment_ids": jnp.ones_like(tokens)}
    batch["positions"] = jnp.broadcast_to(jnp.arange(64), tokens.shape)
    step, state = jax.jit(make_train_step(recipe)), init_state(jax.random.key(0), recipe)
    losses = []
    for _ in range(6):
        state, metrics = step(state, batch)
        losses.append(float(metrics.cross_entropy))
    assert losses[-1] < losses[0] - 0.5, losses
    nu = state.opt_state[0].nu
    assert nu["layers"][1]["moe"]["w_up"].shape == (0,)
    assert nu["embedding"].shape == state.params["embedding"].shape
    with pytest.raises(UsageError, match="adamw or muon"):
        recipes.override(recipe, ["train.optimizer=sgd"])


def test_wrong_leaves_are_printed():
    params = {"w": jnp.ones((2, 3))}
    opt = muon(1e-3, adamw(1e-3), is_matrix)
    with pytest.raises(ValueError, match=r"bfloat16\[2, 3\], float32\[2, 3\]"):
        opt.step({"w": jnp.ones((2, 3), jnp.bfloat16)}, opt.init(params), params)
