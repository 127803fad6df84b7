# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Balancing losses and the bias rule: exact published values, gradients, and errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab

balancing_loss = jax.jit(
    ab.load_balancing_loss, static_argnames=("num_experts", "coeff", "normalize", "axis_name")
)

LOGITS = jnp.array([[2, 1, 0, -1], [0, 3, 1, 0], [1, 0, 2, -2], [4, 0, 0, 1.0]])
PADDED = jnp.concatenate([LOGITS, jnp.tile(jnp.array([[9, 0, 0, 0.0]]), (4, 1))])


def test_b1_balancing_loss_has_the_switch_value() -> None:
    routing = ab.topk_router(LOGITS, 2)
    np.testing.assert_array_equal(routing.experts, [[0, 1], [1, 2], [2, 0], [0, 3]])
    loss = balancing_loss(routing.scores, routing.experts, 4, 1.0)
    assert abs(float(loss) - 1.214529) < 1e-6
    assert abs(float(ab.router_z_loss(LOGITS, 1.0)) - 9.697505) < 1e-5
    sizes = ab.ragged_plan(routing.experts, 4).group_sizes
    by_sizes = balancing_loss(routing.scores, None, 4, 1.0, group_sizes=sizes)
    np.testing.assert_allclose(by_sizes, loss, rtol=2.0**-22)


def test_b1_layers_are_not_pooled() -> None:
    # Each layer uses half of the experts, evenly: 2.0 each, which pooled counts would hide.
    scores = jnp.tile(jnp.array([[0.5, 0.5, 0, 0]]), (6, 1))
    experts = jnp.tile(jnp.array([[0, 1]]), (6, 1))
    for s, e in ((scores, experts), (scores[:, ::-1], experts + 2)):
        assert float(balancing_loss(s, e, 4, 1.0)) == 2.0
    even = jnp.full((6, 4), 0.25)
    assert float(balancing_loss(even, jnp.arange(12).reshape(6, 2) % 4, 4, 1.0)) == 1.0


def test_b2_padding_tokens_are_no_traffic() -> None:
    routing = ab.topk_router(PADDED, 2)
    experts = routing.experts.at[4:].set(-1)
    loss = balancing_loss(routing.scores, experts, 4, 1.0)
    assert abs(float(loss) - 1.214529) < 1e-6
    # A NaN in a padding token reaches neither the loss nor the gradients.
    scores = routing.scores.at[6].set(jnp.nan)
    value, gradient = jax.value_and_grad(balancing_loss)(scores, experts, 4, 1.0)
    np.testing.assert_array_equal(value, loss)
    assert np.isfinite(gradient).all() and (np.asarray(gradient)[4:] == 0).all()


def test_sigmoid_scores_are_normalised_without_epsilon() -> None:
    logits = jax.random.normal(jax.random.key(0), (50, 8)) - 40  # scores near 1e-18
    routing = ab.topk_router(logits, 2, score_function="sigmoid")
    loss = balancing_loss(routing.scores, routing.experts, 8, 1.0)
    scores = np.asarray(routing.scores, np.float64)
    probability = (scores / scores.sum(1, keepdims=True)).mean(0)
    share = np.bincount(np.asarray(routing.experts).reshape(-1), minlength=8) / 100
    np.testing.assert_allclose(loss, 8 * (share * probability).sum(), rtol=1e-5)
    raw = balancing_loss(routing.scores, routing.experts, 8, 1.0, normalize=False)
    np.testing.assert_allclose(raw, 8 * (share * scores.mean(0)).sum(), rtol=1e-5)


def test_gradient_reaches_the_logits_through_the_router() -> None:
    logits = jax.random.normal(jax.random.key(1), (30, 6))

    def ours(x: jax.Array) -> jax.Array:
        routing = ab.topk_router(x, 2)
        return ab.load_balancing_loss(routing.scores, routing.experts, 6, 0.3) + ab.router_z_loss(
            x, 0.1
        )

    experts = ab.topk_router(logits, 2).experts
    share = jnp.bincount(experts.reshape(-1), length=6) / 60

    def plain(x: jax.Array) -> jax.Array:
        balance = 0.3 * 6 * (share * jax.nn.softmax(x).mean(0)).sum()
        return balance + 0.1 * (jax.nn.logsumexp(x, axis=1) ** 2).mean()

    value, gradient = jax.jit(jax.value_and_grad(ours))(logits)
    expected, expected_gradient = jax.jit(jax.value_and_grad(plain))(logits)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-7)


def test_nothing_routed_is_zero() -> None:
    scores = jnp.ones((5, 4))
    value, gradient = jax.value_and_grad(balancing_loss)(scores, jnp.full((5, 2), -1), 4, 1.0)
    assert float(value) == 0 and (np.asarray(gradient) == 0).all()
    empty = jnp.zeros((0, 4))
    assert float(ab.load_balancing_loss(empty, jnp.zeros((0, 2), jnp.int32), 4, 1.0)) == 0
    assert float(ab.router_z_loss(empty, 1.0)) == 0


def test_axis_name_gives_the_loss_of_the_global_batch() -> None:
    logits = jax.random.normal(jax.random.key(2), (32, 8))
    experts = ab.topk_router(logits, 2).experts.at[::5].set(-1)

    def loss(logits: jax.Array, experts: jax.Array, axis_name: str | None) -> jax.Array:
        scores = ab.topk_router(logits, 2).scores
        return ab.load_balancing_loss(scores, experts, 8, 1.0, axis_name=axis_name)

    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    spec = PartitionSpec("data")
    mapped = jax.shard_map(
        lambda x, e: loss(x, e, "data"),
        mesh=mesh,
        in_specs=(spec, spec),
        out_specs=PartitionSpec(),
    )
    expected, expected_gradient = jax.value_and_grad(loss)(logits, experts, None)
    value, gradient = jax.jit(jax.value_and_grad(mapped))(logits, experts)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-7)


def test_bias_moves_by_the_sign_of_mean_minus_load() -> None:
    bias = jnp.array([0.5, 2.0, 3.0, -1.0])
    moved = ab.update_expert_bias(bias, jnp.array([3, 2, 2, 1]), 0.25)
    np.testing.assert_array_equal(moved, [0.25, 2.0, 3.0, -0.75])
    # A mean that is no integer: 7 / 4 lies between 1 and 2.
    moved = ab.update_expert_bias(jnp.zeros(4), jnp.array([1, 2, 2, 2]), 1.0)
    np.testing.assert_array_equal(moved, [1, -1, -1, -1])


def test_bias_compares_counts_as_integers() -> None:
    # One off at 2^31 - 1: equal in f32, and neither sum nor product fits in i32.
    top = 2**31 - 1
    moved = ab.update_expert_bias(jnp.zeros(4), jnp.array([top, top, top - 1, top]), 1.0)
    np.testing.assert_array_equal(moved, [-1, -1, 1, -1])
    layers = ab.update_expert_bias(jnp.zeros((2, 2)), jnp.array([[0, 2], [5, 5]]), 1.0)
    np.testing.assert_array_equal(layers, [[1, -1], [0, 0]])


def test_wrong_arguments_are_named() -> None:
    scores, experts = jnp.ones((5, 4)), jnp.zeros((5, 2), jnp.int32)
    with pytest.raises(ValueError, match=r"scores must be \[T, 3\], got float32\[5,4\]"):
        ab.load_balancing_loss(scores, experts, 3, 1.0)
    with pytest.raises(ValueError, match=r"experts must be \[5, k\].*int32\[4,2\]"):
        ab.load_balancing_loss(scores, experts[1:], 4, 1.0)
    with pytest.raises(ValueError, match="neither"):
        ab.load_balancing_loss(scores, None, 4, 1.0)
    with pytest.raises(ValueError, match=r"group_sizes must be \[4\], got int32\[3\]"):
        ab.load_balancing_loss(scores, None, 4, 1.0, group_sizes=jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match=r"float32\[4\]"):
        ab.router_z_loss(jnp.ones(4), 1.0)
    with pytest.raises(ValueError, match=r"float32\[4\] and int32\[5\]"):
        ab.update_expert_bias(jnp.ones(4), jnp.zeros(5, jnp.int32), 0.1)
    with pytest.raises(ValueError, match=r"integer, got float32\[4\]"):
        ab.update_expert_bias(jnp.ones(4), jnp.ones(4), 0.1)
