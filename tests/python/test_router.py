# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""topk_router against published models' rules in f64 numpy, its gradients, and its errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab
import published_routers as published
from anabranch.ops import reference

EPS = 2.0**-24
V3_OPTIONS = {
    "score_function": "sigmoid",
    "num_groups": 8,
    "group_topk": 4,
    "normalize": True,
    "scaling_factor": 2.5,
}
# name -> (E, k, options, rule); rules with a bias get it as second argument.
MODELS: dict[str, tuple[int, int, dict[str, Any], Any]] = {
    "deepseek_v3": (256, 8, V3_OPTIONS, published.deepseek_v3),
    "deepseek_v2": (
        160,
        6,
        {"num_groups": 8, "group_topk": 3, "group_score": "max", "scaling_factor": 16.0},
        published.deepseek_v2,
    ),
    "deepseek_v4": (
        256,
        6,
        {"score_function": "sqrtsoftplus", "normalize": True, "scaling_factor": 1.5},
        published.deepseek_v4,
    ),
    "mixtral": (8, 2, {"normalize": True}, published.mixtral),
    "qwen3": (128, 8, {"normalize": True}, lambda logits: published.mixtral(logits, 8)),
    "olmoe": (64, 8, {}, published.olmoe),
    "gpt_oss": (128, 4, {"score_function": "softmax_topk"}, published.gpt_oss),
    "minimax_m2": (256, 8, {"score_function": "sigmoid", "normalize": True}, published.minimax_m2),
}
BIASED = ("deepseek_v3", "deepseek_v4", "minimax_m2")


def weight_bound(num_experts: int) -> float:
    """Relative error of a weight: the softmax's sum of E f32 terms in 8 lanes (router.h)."""
    return (num_experts / 8 + 16) * EPS


@pytest.mark.parametrize("name", MODELS)
def test_routes_as_the_published_model(name: str) -> None:
    num_experts, topk, options, rule = MODELS[name]
    rng = np.random.default_rng(len(name))
    logits = rng.normal(size=(500, num_experts)).astype(np.float32)
    bias = None
    arguments = [logits.astype(np.float64)]
    if name in BIASED:
        # Released biases are all above +2: they must not be assumed small.
        bias = (2 + rng.normal(size=num_experts) * 0.05).astype(np.float32)
        arguments.append(bias.astype(np.float64))
    experts, weights, margin = rule(*arguments)
    routing = ab.topk_router(jnp.asarray(logits), topk, expert_bias=bias, **options)
    # f32 scores below 4 differ from f64 ones by less than 1e-6; nearer tokens may go either way.
    clear = margin > 4e-6
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(np.asarray(routing.experts)[clear], experts[clear])
    np.testing.assert_allclose(
        np.asarray(routing.weights)[clear], weights[clear], rtol=weight_bound(num_experts)
    )
    assert routing.experts.dtype == jnp.int32
    assert routing.weights.dtype == routing.scores.dtype == jnp.float32


@pytest.mark.parametrize("score_function", ["softmax", "softmax_topk", "sigmoid", "sqrtsoftplus"])
def test_scores_are_unbiased_and_weights_are_scores(score_function: str) -> None:
    logits = jax.random.normal(jax.random.key(0), (37, 12))
    bias = jnp.linspace(-1, 1, 12)
    routing = ab.topk_router(logits, 3, score_function=score_function, expert_bias=bias)
    expected = {
        "sigmoid": published.sigmoid,
        "sqrtsoftplus": lambda x: np.sqrt(np.logaddexp(0, x)),
    }.get(score_function, published.softmax)(np.asarray(logits, np.float64))
    np.testing.assert_allclose(routing.scores, expected, rtol=weight_bound(12))
    if score_function != "softmax_topk":
        np.testing.assert_array_equal(
            routing.weights, np.take_along_axis(np.asarray(routing.scores), routing.experts, 1)
        )


CASES: list[tuple[int, int, dict[str, Any]]] = [
    (16, 3, {}),
    (16, 3, {"normalize": True, "scaling_factor": 1.5}),
    (16, 3, {"score_function": "softmax_topk"}),
    (16, 3, {"score_function": "sigmoid"}),
    (16, 16, {"score_function": "sigmoid", "normalize": True, "scaling_factor": 2.5}),
    (24, 4, {**V3_OPTIONS, "group_score": 3}),
    (16, 3, {"score_function": "sqrtsoftplus", "normalize": True}),
    (16, 1, {"score_function": "sqrtsoftplus", "num_groups": 4, "group_score": "max"}),
    (1, 1, {"normalize": True}),
]


def objective(router: Any, topk: int, options: dict[str, Any]) -> Any:
    """A scalar that weighs all outputs by random cotangents."""

    def value(logits: jax.Array, d_weights: Any, d_scores: Any) -> jax.Array:
        routing = router(logits, topk, **options)
        return (routing.weights * d_weights).sum() + (routing.scores * d_scores).sum()

    return value


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, jnp.float32) for case in range(len(CASES))] + [(0, jnp.bfloat16), (5, jnp.bfloat16)],
)
def test_gradient_matches_f64(case: int, dtype: Any) -> None:
    num_experts, topk, options = CASES[case]
    rng = np.random.default_rng(case)
    logits = jnp.asarray(rng.normal(size=(41, num_experts)), dtype)
    d_weights = rng.normal(size=(41, topk)).astype(np.float32)
    d_scores = rng.normal(size=(41, num_experts)).astype(np.float32)
    gradient = jax.jit(jax.grad(objective(ab.topk_router, topk, options)))(
        logits, d_weights, d_scores
    )
    assert gradient.dtype == dtype
    with jax.enable_x64(True):
        exact = jax.jit(jax.grad(objective(reference.topk_router, topk, options)))(
            *(jnp.asarray(np.asarray(x, np.float64)) for x in (logits, d_weights, d_scores))
        )
        exact = np.asarray(exact)
    # Every entry is a difference of terms bounded by the sum of all |cotangents| of its token.
    scale = options.get("scaling_factor", 1.0)
    magnitude = scale * np.abs(d_weights).sum(1) + np.abs(d_scores).sum(1)
    bound = 2 * weight_bound(num_experts) * magnitude[:, None]
    if dtype == jnp.bfloat16:
        bound = bound + 2.0**-8 * np.abs(exact)  # half a unit in the last place of bf16
    assert (np.abs(np.asarray(gradient, np.float64) - exact) <= bound).all()


def test_bias_gets_no_gradient() -> None:
    logits = jax.random.normal(jax.random.key(1), (9, 8))
    bias = jnp.linspace(0, 1, 8)
    gradient = jax.grad(
        lambda b: (ab.topk_router(logits, 2, score_function="sigmoid", expert_bias=b).weights).sum()
    )(bias)
    np.testing.assert_array_equal(gradient, np.zeros(8))


def test_engine_equals_the_reference_also_on_ties() -> None:
    # Few distinct logits: ties everywhere, between experts and between groups.
    logits = jnp.asarray(np.random.default_rng(2).integers(0, 3, (200, 32)) - 1.0, jnp.float32)
    for score_function in ("softmax", "softmax_topk", "sigmoid", "sqrtsoftplus"):
        options = {"score_function": score_function, "num_groups": 8, "group_topk": 3}
        ours = ab.topk_router(logits, 5, **options)
        oracle = jax.jit(lambda x, o=options: reference.topk_router(x, 5, **o))(logits)
        np.testing.assert_array_equal(ours.experts, oracle.experts)


def test_nan_logits_stay_in_their_token() -> None:
    clean = jax.random.normal(jax.random.key(3), (6, 16))
    dirty = clean.at[2, 5].set(jnp.nan).at[4].set(-jnp.nan)
    for options in ({}, {"score_function": "softmax_topk"}, {**V3_OPTIONS, "group_topk": 2}):
        expected = ab.topk_router(clean, 4, **options)
        routing = ab.topk_router(dirty, 4, **options)
        for token in (2, 4):
            ids = np.asarray(routing.experts[token])
            assert len(set(ids)) == 4 and (ids >= 0).all() and (ids < 16).all()
            assert np.isnan(routing.weights[token]).any()
        for token in (0, 1, 3, 5):
            jax.tree.map(
                lambda a, b, t=token: np.testing.assert_array_equal(a[t], b[t]), routing, expected
            )
        gradient = jax.grad(lambda x, o=options: ab.topk_router(x, 4, **o).weights[:, 0].sum())
        changed = np.isnan(np.asarray(gradient(dirty))).any(axis=1)
        np.testing.assert_array_equal(changed, [False, False, True, False, True, False])


@pytest.mark.parametrize("level", [-30.0, -60.0, -90.0, -200.0])
@pytest.mark.parametrize("score_function", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_tiny_scores_still_sum_to_one(score_function: str, level: float) -> None:
    logits = level - jnp.arange(8.0)[None]
    routing = ab.topk_router(logits, 3, score_function=score_function, normalize=True)
    assert abs(float(routing.weights.sum()) - 1) <= 3 * EPS


def test_b5_ties_under_remat_choose_the_same() -> None:
    logits = jax.random.normal(jax.random.key(4), (64, 8))
    logits = logits.at[::2].set(0.25)  # all equal in half of the tokens
    cotangent = jax.random.normal(jax.random.key(5), (64, 8))

    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        routing = ab.topk_router(x, 2, score_function="sigmoid", normalize=True)
        plan = ab.ragged_plan(routing.experts, 8)
        rows = ab.gather_rows(jnp.tanh(x), plan)
        return (ab.combine_rows(rows, plan, routing.weights) * cotangent).sum(), plan.group_sizes

    plain = jax.value_and_grad(f, has_aux=True)(logits)
    remat = jax.value_and_grad(jax.checkpoint(f), has_aux=True)(logits)
    jitted = jax.jit(jax.value_and_grad(jax.checkpoint(f), has_aux=True))(logits)
    assert int(plain[0][1].sum()) == 128
    jax.tree.map(np.testing.assert_array_equal, plain[0][1], remat[0][1])
    np.testing.assert_array_equal(plain[1], remat[1])
    np.testing.assert_array_equal(jitted[0][1], plain[0][1])


def test_works_under_scan_vmap_and_shard_map() -> None:
    logits = jax.random.normal(jax.random.key(6), (8, 16, 12))
    cotangent = jax.random.normal(jax.random.key(7), (8, 16, 4))

    def weigh(x: jax.Array, d: jax.Array) -> jax.Array:
        routing = ab.topk_router(x, 4, expert_bias=jnp.zeros(12), normalize=True)
        return (routing.weights * d).sum()

    expected = jnp.stack([jax.grad(weigh)(x, d) for x, d in zip(logits, cotangent, strict=True)])

    def scanned(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, a: (c + weigh(*a), None), 0.0, (x, cotangent))[0]

    np.testing.assert_array_equal(jax.jit(jax.grad(scanned))(logits), expected)
    np.testing.assert_array_equal(jax.vmap(jax.grad(weigh))(logits, cotangent), expected)

    devices = jax.devices()[:4]
    mesh = Mesh(np.array(devices), ("data",))
    spec = PartitionSpec("data")

    def mapped(x: jax.Array) -> jax.Array:
        def local(x: jax.Array, d: jax.Array) -> jax.Array:
            return jax.lax.psum(weigh(x.reshape(-1, 12), d.reshape(-1, 4)), "data")

        return jax.shard_map(local, mesh=mesh, in_specs=(spec, spec), out_specs=PartitionSpec())(
            x, cotangent
        )

    np.testing.assert_array_equal(jax.jit(jax.grad(mapped))(logits), expected)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_experts=st.integers(1, 40),
    data=st.data(),
    score_function=st.sampled_from(["softmax", "softmax_topk", "sigmoid", "sqrtsoftplus"]),
    normalize=st.booleans(),
)
def test_permuting_experts_permutes_outputs(
    seed: int, num_experts: int, data: Any, score_function: str, normalize: bool
) -> None:
    topk = data.draw(st.integers(1, num_experts))
    rng = np.random.default_rng(seed)
    # Distinct logits a fixed step apart: no ties, and far enough that rounding moves no rank.
    logits = np.stack([rng.permutation(num_experts) for _ in range(5)]).astype(np.float32) / 8
    permutation = rng.permutation(num_experts)
    options = {"score_function": score_function, "normalize": normalize}
    before = ab.topk_router(jnp.asarray(logits), topk, **options)
    after = ab.topk_router(jnp.asarray(logits[:, permutation]), topk, **options)
    np.testing.assert_array_equal(permutation[np.asarray(after.experts)], before.experts)
    # A softmax's sum is taken in another order; everything else is the same arithmetic.
    np.testing.assert_allclose(after.weights, before.weights, rtol=weight_bound(num_experts))
    np.testing.assert_allclose(
        after.scores, np.asarray(before.scores)[:, permutation], rtol=weight_bound(num_experts)
    )


def test_no_tokens() -> None:
    routing = ab.topk_router(jnp.zeros((0, 4)), 2)
    assert [x.shape for x in routing] == [(0, 2), (0, 2), (0, 4)]
    gradient = jax.grad(lambda x: ab.topk_router(x, 2).weights.sum())(jnp.zeros((0, 4)))
    assert gradient.shape == (0, 4)


@pytest.mark.parametrize(
    ("shape", "topk", "options", "parts"),
    [
        ((4,), 1, {}, ["float32[4]"]),
        ((2, 3, 4), 1, {}, ["float32[2, 3, 4]"]),
        ((2, 4), 5, {}, ["topk", "[1, 4]", "[2, 4]", "5"]),
        ((2, 4), 0, {}, ["topk", "0"]),
        ((2, 4), 1, {"num_groups": 3}, ["num_groups", "4", "3"]),
        ((2, 8), 1, {"num_groups": 4, "group_topk": 5}, ["group_topk", "num_groups=4", "5"]),
        ((2, 8), 3, {"num_groups": 4, "group_topk": 1}, ["topk=3", "2 experts"]),
        ((2, 8), 1, {"num_groups": 8}, ["group_score='top2'", "groups", "1"]),
        ((2, 8), 1, {"group_score": "mean"}, ["group_score", "'mean'"]),
        ((2, 8), 1, {"score_function": "relu"}, ["score_function", "'relu'", "softmax"]),
        ((2, 8), 1, {"expert_bias": jnp.zeros(7)}, ["float32[8]", "float32[7]"]),
    ],
)
def test_wrong_arguments_are_named(
    shape: tuple[int, ...], topk: int, options: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        ab.topk_router(jnp.zeros(shape), topk, **options)
    message = str(error.value)
    assert message.startswith("topk_router: ")
    for part in parts:
        assert part in message.replace("group of", "groups of"), (part, message)


def test_integer_logits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"int32\[2, 4\]"):
        ab.topk_router(jnp.zeros((2, 4), jnp.int32), 1)
