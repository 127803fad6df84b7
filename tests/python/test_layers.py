# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Norms, rotary embedding, attention blocks and the mixture-of-experts block."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpy_model
from anabranch.layers import (
    AttentionConfig,
    MoEConfig,
    RotaryConfig,
    apply_rotary,
    columns,
    dense_ffn,
    mla,
    mla_init,
    moe,
    moe_init,
    moe_with_aux,
    rms_norm,
    rotary_table,
    softmax_scale,
)
from anabranch.layers.rotary import inverse_frequencies

MOE = jax.jit(moe, static_argnames="config")
MOE_WITH_AUX = jax.jit(moe_with_aux, static_argnames="config")
MLA = jax.jit(mla, static_argnames=("config", "rotary"))
EPS = float(np.finfo(np.float32).eps)
DEEPSEEK_V3_ROTARY = RotaryConfig(factor=40.0)
V2_LITE_ROTARY = RotaryConfig(factor=40.0, mscale=0.707, mscale_all_dim=0.707)


def test_rms_norm_matches_f64_and_keeps_the_type() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((3, 5, 40)).astype(np.float32), rng.standard_normal(40)
    weight = weight.astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(rms_norm(x, weight), expected, rtol=48 * EPS)
    narrow = rms_norm(jnp.asarray(x, jnp.bfloat16), weight)
    assert narrow.dtype == jnp.bfloat16
    assert rms_norm(x, weight, 1e-6, jnp.bfloat16).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match=r"\(39,\).*\(3, 5, 40\)"):
        rms_norm(x, weight[1:])


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_turns_pairs_by_position_times_frequency(interleaved) -> None:
    rng = np.random.default_rng(1)
    config = RotaryConfig(theta=100.0, factor=8.0, original_length=6)
    x = rng.standard_normal((1, 9, 2, 12)).astype(np.float32)
    table = rotary_table(jnp.arange(9)[None], 12, config)
    got = apply_rotary(jnp.asarray(x), table, interleaved=interleaved)
    for s in range(9):
        for n in range(2):
            wide = x[0, s, n].astype(np.float64)
            expected = numpy_model.rotate(wide, s, config, interleaved)
            # The angle, at most 8 radians, is rounded once before its cosine is taken.
            np.testing.assert_allclose(got[0, s, n], expected, rtol=0, atol=8 * 4 * EPS)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_gradient_turns_back(interleaved) -> None:
    rng = np.random.default_rng(2)
    config = RotaryConfig(theta=100.0)
    x, grad = rng.standard_normal((2, 1, 9, 2, 12)).astype(np.float32)
    table = rotary_table(jnp.arange(9)[None], 12, config)
    turn = functools.partial(apply_rotary, table=table, interleaved=interleaved)
    (got,) = jax.vjp(turn, jnp.asarray(x))[1](jnp.asarray(grad))
    for s in range(9):
        for n in range(2):
            wide = grad[0, s, n].astype(np.float64)
            expected = numpy_model.rotate(wide, -s, config, interleaved)
            np.testing.assert_allclose(got[0, s, n], expected, rtol=0, atol=8 * 4 * EPS)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float16])
def test_columns_and_their_gradients_move_bit_for_bit(dtype) -> None:
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.standard_normal((3, 2, 7)), dtype).at[0, 0, :2].set(-0.0)
    x = x.at[0, 1].set(jnp.nan)
    got, pullback = jax.vjp(lambda x: columns.cut(x, 3), x)
    for part, expected in zip(got, jnp.split(x, [3], axis=-1), strict=True):
        np.testing.assert_array_equal(as_bytes(part), as_bytes(expected))
    np.testing.assert_array_equal(as_bytes(pullback(got)[0]), as_bytes(x))
    joined, pullback = jax.vjp(columns.join, *got)
    np.testing.assert_array_equal(as_bytes(joined), as_bytes(x))
    for part, expected in zip(pullback(x), got, strict=True):
        np.testing.assert_array_equal(as_bytes(part), as_bytes(expected))


def as_bytes(array) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def test_dense_ffn_and_its_gradients_match_f64() -> None:
    rng = np.random.default_rng(4)
    shapes = {"x": (5, 24), "w_gate": (24, 40), "w_up": (24, 40), "w_down": (40, 24)}
    given = {n: rng.standard_normal(s).astype(np.float32) / 3 for n, s in shapes.items()}
    grad = rng.standard_normal((5, 24)).astype(np.float32)
    y, pullback = jax.vjp(lambda given: dense_ffn(given, given["x"]), given)
    (grads,) = pullback(jnp.asarray(grad))
    x, gate, up, down = (given[name].astype(np.float64) for name in shapes)
    a, b = x @ gate, x @ up
    share = 1 / (1 + np.exp(-a))
    hidden = a * share * b
    d_hidden = grad @ down.T
    da, db = d_hidden * b * share * (1 + a * (1 - share)), d_hidden * a * share
    expected = {
        "x": da @ gate.T + db @ up.T,
        "w_gate": x.T @ da,
        "w_up": x.T @ db,
        "w_down": hidden.T @ grad,
    }
    np.testing.assert_allclose(y, hidden @ down, rtol=0, atol=64 * EPS * np.abs(y).max())
    for name, value in expected.items():
        atol = 64 * EPS * np.abs(value).max()
        np.testing.assert_allclose(grads[name], value, rtol=0, atol=atol, err_msg=name)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones() -> None:
    plain = inverse_frequencies(64, RotaryConfig())
    yarn = inverse_frequencies(64, DEEPSEEK_V3_ROTARY)
    np.testing.assert_allclose(plain, 1e4 ** (-np.arange(32) / 32), rtol=1e-15)
    # 32 turns in 4,096 positions end at pair 10.46, one turn at 22.5: 10 and 23 bound the ramp.
    np.testing.assert_array_equal(yarn[:11], plain[:11])
    np.testing.assert_allclose(yarn[23:], plain[23:] / 40, rtol=1e-15)
    middle = plain[16] * (1 - 6 / 13) + plain[16] / 40 * 6 / 13
    assert yarn[16] == pytest.approx(middle, rel=1e-14)


def test_d6_yarn_softmax_factor() -> None:
    assert softmax_scale(192, DEEPSEEK_V3_ROTARY) == pytest.approx(0.1352338, abs=5e-8)
    plain = softmax_scale(192, RotaryConfig())
    assert plain == 192**-0.5
    assert softmax_scale(192, DEEPSEEK_V3_ROTARY) / plain == pytest.approx(1.8738542, abs=5e-8)
    assert softmax_scale(192, V2_LITE_ROTARY) / plain == pytest.approx(1.5896262, abs=5e-8)
    for config in (DEEPSEEK_V3_ROTARY, V2_LITE_ROTARY):
        cos, sin = rotary_table(jnp.zeros((1, 1)), 64, config)
        assert (np.asarray(cos) == 1).all() and (np.asarray(sin) == 0).all()
    other = dataclasses.replace(V2_LITE_ROTARY, mscale=1.0)
    ratio = (0.1 * math.log(40) + 1) / (0.0707 * math.log(40) + 1)
    cos, _ = rotary_table(jnp.zeros((1, 1)), 64, other)
    np.testing.assert_allclose(cos, ratio, rtol=2 * EPS)


@pytest.mark.parametrize("rotary", [DEEPSEEK_V3_ROTARY, V2_LITE_ROTARY])
def test_d6_mla_matches_numpy_beyond_position_0(rotary) -> None:
    config = AttentionConfig(
        num_heads=2,
        q_lora_rank=24,
        kv_lora_rank=16,
        nope_head_size=128,
        rope_head_size=64,
        value_head_size=32,
    )
    rng = np.random.default_rng(3)
    params = mla_init(jax.random.key(0), 48, config, 0.15)
    x = rng.standard_normal((1, 4, 48)).astype(np.float32)
    positions = np.array(
        [[0, 1, 4095, 5000]], np.int32
    )  # the last one is beyond the original length

    def run(rotary):
        table = rotary_table(positions, 64, rotary)
        return np.asarray(MLA(params, x, config=config, rotary=rotary, table=table))

    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    expected = numpy_model.mla(x[0].astype(np.float64), wide, config, rotary, 1e-6, positions[0])
    got = run(rotary)[0]
    np.testing.assert_allclose(got[:2], expected[:2], rtol=0, atol=1e-5)
    # An angle of 5,000 radians is rounded to 2.4e-4, which turns a pair by as much.
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-4 * np.abs(expected).max())
    unscaled = run(dataclasses.replace(rotary, mscale=0.0, mscale_all_dim=0.0))[0]
    assert np.abs(unscaled[1:] - got[1:]).max() > 3e-3 * np.abs(expected).max()


def moe_problem(seed=0, tokens=16, dtype=jnp.float32, **changes):
    settings = {
        "hidden_size": 24,
        "num_experts": 8,
        "topk": 2,
        "expert_width": 16,
        "num_shared_experts": 1,
        "normalize": True,
        "score_function": "sigmoid",
        "init_scale": 0.3,
    }
    config = MoEConfig(**(settings | changes))
    params = moe_init(jax.random.key(seed), config)
    x = jax.random.normal(jax.random.key(seed + 1), (tokens, config.hidden_size), dtype)
    return params, x, config


def test_moe_matches_numpy() -> None:
    params, x, config = moe_problem(expert_bias=True, scaling_factor=2.5)
    params["expert_bias"] = 0.2 * jax.random.normal(jax.random.key(9), (8,))
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    counts, margins = np.zeros(8, int), []
    expected = numpy_model.moe(np.asarray(x, np.float64), wide, config, counts, margins)
    assert min(margins) > 1e-5
    y, aux = MOE_WITH_AUX(params, x, config=config)
    np.testing.assert_allclose(y, expected, rtol=0, atol=64 * EPS * np.abs(expected).max())
    np.testing.assert_array_equal(aux.group_sizes, counts)
    np.testing.assert_array_equal(MOE(params, x, config=config), y)
    stacked = MOE(params, x.reshape(2, 8, -1), config=config)
    np.testing.assert_array_equal(stacked.reshape(y.shape), y)


def test_b9_scaling_reaches_the_routed_experts_alone() -> None:
    params, x, config = moe_problem()
    shared = np.asarray(dense_ffn(params["shared"], x))
    y1, y2 = (
        np.asarray(MOE(params, x, config=dataclasses.replace(config, scaling_factor=s)))
        for s in (1.0, 2.5)
    )
    # Each side carries a few roundings of y, which the subtraction of the shared part keeps.
    bound = 16 * EPS * max(np.abs(y2).max(), np.abs(shared).max())
    np.testing.assert_allclose(y2 - shared, 2.5 * (y1 - shared), rtol=1e-5, atol=bound)
    params["shared"]["w_down"] = jnp.zeros_like(params["shared"]["w_down"])
    y1, y2 = (
        np.asarray(MOE(params, x, config=dataclasses.replace(config, scaling_factor=s)))
        for s in (1.0, 2.5)
    )
    np.testing.assert_allclose(y2, 2.5 * y1, rtol=1e-5, atol=16 * EPS * np.abs(y2).max())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_b5_remat_of_a_block_changes_neither_counts_nor_bits(dtype) -> None:
    params, x, config = moe_problem(tokens=64, dtype=dtype)
    x = x.at[::2].set(0)  # all logits equal in half of the tokens: ties
    cotangent = jax.random.normal(jax.random.key(7), x.shape)

    def scalar(params):
        y, aux = moe_with_aux(params, x, config)
        return jnp.sum(y * cotangent), aux.group_sizes

    results = [
        jax.value_and_grad(f, has_aux=True)(params) for f in (scalar, jax.checkpoint(scalar))
    ]
    for _, sizes in (value for value, _ in results):
        assert int(sizes.sum()) == 128
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_masked_tokens_are_routed_nowhere() -> None:
    params, x, config = moe_problem(
        load_balancing_coeff=1.0, router_z_coeff=1.0, num_shared_experts=0
    )
    mask = jnp.arange(16) % 3 != 0
    y, aux = MOE_WITH_AUX(params, x, config=config, token_mask=mask)
    alone, alone_aux = MOE_WITH_AUX(params, x[mask], config=config)
    np.testing.assert_array_equal(y[mask], alone)
    assert (np.asarray(y[~mask]) == 0).all()
    np.testing.assert_array_equal(aux.group_sizes, alone_aux.group_sizes)
    for got, want in zip(aux[1:], alone_aux[1:], strict=True):
        assert float(got) == pytest.approx(float(want), rel=16 * EPS) and float(want) > 0


def test_the_selection_bias_receives_no_gradient() -> None:
    params, x, config = moe_problem(expert_bias=True)
    grads = jax.jit(jax.grad(lambda p: jnp.sum(moe(p, x, config) ** 2)))(params)
    assert (np.asarray(grads["expert_bias"]) == 0).all()
    assert all(np.abs(grads[name]).max() > 0 for name in ("router", "w_gate", "w_up", "w_down"))


def test_bf16_inputs_give_bf16_outputs_and_f32_gradients() -> None:
    params, x, config = moe_problem(dtype=jnp.bfloat16)
    y, transpose = jax.vjp(lambda p: MOE(p, x, config=config), params)
    (grads,) = transpose(jnp.ones_like(y))
    assert y.dtype == jnp.bfloat16
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"topk": 9}, "topk=9: must be 1 to 8"),
        ({"num_groups": 3}, "num_groups=3: must divide num_experts=8"),
        ({"num_groups": 4, "topk": 4}, "topk=4: must be 1 to 2"),
        ({"score_function": "tanh"}, "score_function='tanh'"),
        ({"group_topk": 2}, "group_topk=2: must not exceed num_groups=1"),
    ],
)
def test_routing_that_cannot_be_satisfied_is_an_error(changes, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        moe_problem(**changes)


def test_moe_prints_a_wrong_shape() -> None:
    params, x, config = moe_problem()
    with pytest.raises(ValueError, match=r"\(16, 23\)"):
        moe(params, x[:, 1:], config)
