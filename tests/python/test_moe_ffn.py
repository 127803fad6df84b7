# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""moe_ffn against its plain oracle in f64, under every transformation, and its errors."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab
from anabranch.ops import reference

NAMES = ("x", "weights", "w_gate", "w_up", "w_down")


def problem(
    tokens: int = 45,
    hidden: int = 40,
    width: int = 24,
    experts: int = 6,
    topk: int = 2,
    *,
    skew: str = "uniform",
    seed: int = 0,
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Expert ids, the five float arguments and a random cotangent, all as numpy f64."""
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk].astype(np.int32)
    if skew == "one":
        ids[:, 0], ids[:, 1:] = 0, -1
    elif skew == "some_unrouted":
        ids[rng.random(ids.shape) < 0.3] = -1
    elif skew == "nothing":
        ids[:] = -1
    scale = hidden**-0.5
    floats = {
        "x": rng.normal(size=(tokens, hidden)),
        "weights": rng.normal(size=(tokens, topk)),
        "w_gate": rng.normal(size=(experts, hidden, width)) * scale,
        "w_up": rng.normal(size=(experts, hidden, width)) * scale,
        "w_down": rng.normal(size=(experts, width, hidden)) * scale,
    }
    return ids, floats, rng.normal(size=(tokens, hidden))


def loss(
    ids: Any, cotangent: Any, activation: str, implementation: str | None, *floats: jax.Array
) -> jax.Array:
    x, weights, *experts = floats
    routing = ab.Routing(jnp.asarray(ids), weights, None)
    y = ab.moe_ffn(x, routing, *experts, activation=activation, implementation=implementation)
    return (y.astype(jnp.float32) * cotangent).sum()


def exact(
    ids: np.ndarray, floats: dict[str, np.ndarray], cotangent: np.ndarray, activation: str
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Output and gradients of the oracle in f64."""
    with jax.enable_x64(True):
        args = [jnp.asarray(floats[name]) for name in NAMES]
        function = lambda *a: reference.moe_ffn(a[0], jnp.asarray(ids), *a[1:], activation)  # noqa: E731
        y, pullback = jax.vjp(function, *args)
        return np.asarray(y), [np.asarray(g) for g in pullback(jnp.asarray(cotangent, jnp.float64))]


def cast(floats: dict[str, np.ndarray], rows: str, weights: str) -> list[jax.Array]:
    dtypes = {"x": rows, "weights": "float32"}
    return [jnp.asarray(floats[name], dtypes.get(name, weights)) for name in NAMES]


def rounded(args: list[jax.Array], rows: str) -> dict[str, np.ndarray]:
    """The values that the engine really multiplies, in f64."""
    values = {}
    for name, arg in zip(NAMES, args, strict=True):
        arg = arg if name == "weights" else arg.astype(rows)
        values[name] = np.asarray(arg.astype(jnp.float32), np.float64)
    return values


def assert_close(got: Any, want: np.ndarray, unit: float, longest: int, what: str) -> None:
    """Up to five roundings to the row type, and f32 sums of ``longest`` terms, normwise."""
    bound = np.abs(want).max(initial=0) * (5 * unit + (longest + 1) * 2.0**-23)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0, atol=bound, err_msg=what)


DTYPES = [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]


@pytest.mark.parametrize("skew", ["uniform", "one", "some_unrouted", "nothing"])
@pytest.mark.parametrize(("rows", "weights"), DTYPES)
@pytest.mark.parametrize("implementation", [None, "unfused"])
def test_output_and_gradients_match_f64(
    skew: str, rows: str, weights: str, implementation: str | None
) -> None:
    ids, floats, cotangent = problem(skew=skew)
    args = cast(floats, rows, weights)
    cotangent = np.asarray(jnp.asarray(cotangent, rows).astype(jnp.float32))
    y, grads = exact(ids, rounded(args, rows), cotangent, "swiglu")
    function = functools.partial(loss, ids, cotangent, "swiglu", implementation)
    got = jax.jit(jax.grad(function, argnums=range(5)))(*args)
    routing = ab.Routing(jnp.asarray(ids), args[1], None)
    unit = 2.0**-8 if rows == "bfloat16" else 2.0**-23
    assert_close(
        ab.moe_ffn(args[0], routing, *args[2:], implementation=implementation), y, unit, 80, "y"
    )
    for name, arg, gradient, want in zip(NAMES, args, got, grads, strict=True):
        assert gradient.dtype == arg.dtype and gradient.shape == arg.shape
        assert_close(gradient, want, unit, 80, name)


@pytest.mark.parametrize("activation", ["swiglu", "geglu", "reglu", "clamped_swiglu"])
def test_every_activation_matches_f64(activation: str) -> None:
    ids, floats, cotangent = problem(33, 31, 17, 5, 3, seed=2)
    floats["w_gate"] *= 4  # reaches the clamp at 7
    args = cast(floats, "float32", "float32")
    y, grads = exact(ids, rounded(args, "float32"), np.float32(cotangent), activation)
    function = functools.partial(loss, ids, np.float32(cotangent), activation, None)
    for name, gradient, want in zip(
        NAMES, jax.grad(function, argnums=range(5))(*args), grads, strict=True
    ):
        assert_close(gradient, want, 2.0**-23, 80, name)


def test_works_under_remat_scan_vmap_and_shard_map() -> None:
    ids, floats, cotangent = problem()
    args = cast(floats, "float32", "float32")
    function = functools.partial(loss, ids, np.float32(cotangent), "swiglu", None)
    gradient = functools.partial(jax.grad, argnums=range(5))
    want = gradient(function)(*args)
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    same(want, gradient(jax.checkpoint(function))(*args))

    def scanned(*a: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (c + function(*a), None), 0.0, None, length=1)[0]

    same(want, jax.jit(gradient(jax.checkpoint(scanned)))(*args))

    x = jnp.stack([args[0], -2 * args[0]])
    routing = ab.Routing(jnp.asarray(ids), args[1], None)
    run = lambda x: ab.moe_ffn(x, routing, *args[2:])  # noqa: E731
    np.testing.assert_array_equal(jax.vmap(run)(x), jnp.stack([run(x[0]), run(x[1])]))

    mesh = Mesh(np.asarray(jax.devices()[:1]), ("d",))
    spec = PartitionSpec()
    sharded = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    np.testing.assert_array_equal(jax.jit(sharded)(args[0]), run(args[0]))


def test_gradient_reaches_logits_through_the_router() -> None:
    _, floats, cotangent = problem(seed=4)
    args = cast(floats, "float32", "float32")
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(45, 6)), jnp.float32)

    def run(logits: jax.Array, implementation: str | None) -> jax.Array:
        routing = ab.topk_router(logits, 2, score_function="sigmoid", normalize=True)
        y = ab.moe_ffn(args[0], routing, *args[2:], implementation=implementation)
        return (y * np.float32(cotangent)).sum()

    got, want = (jax.grad(run)(logits, name) for name in (None, "reference"))
    assert np.abs(want).max() > 1e-3
    assert_close(got, np.asarray(want, np.float64), 2.0**-23, 80, "logits")


def test_a3_nothing_was_routed_at_all() -> None:
    for tokens, skew in ((0, "uniform"), (8, "nothing")):
        ids, floats, _ = problem(tokens, skew=skew)
        args = cast(floats, "bfloat16", "float32")
        function = functools.partial(loss, ids, jnp.ones((tokens, 40)), "swiglu", None)
        routing = ab.Routing(jnp.asarray(ids), args[1], None)
        for wrap in (lambda f: f, jax.jit):
            y = wrap(lambda x, r=routing, a=args: ab.moe_ffn(x, r, *a[2:]))(args[0])
            assert y.shape == (tokens, 40) and not np.asarray(y).any()
            for arg, gradient in zip(
                args, wrap(jax.grad(function, argnums=range(5)))(*args), strict=True
            ):
                assert gradient.shape == arg.shape and not np.asarray(gradient).any()


def test_tokens_are_independent_to_the_bit() -> None:
    ids, floats, _ = problem(70, seed=9)
    x, weights, *experts = cast(floats, "bfloat16", "bfloat16")
    order = np.random.default_rng(3).permutation(70)
    y = ab.moe_ffn(x, ab.Routing(jnp.asarray(ids), weights, None), *experts)
    routing = ab.Routing(jnp.asarray(ids[order]), weights[order], None)
    np.testing.assert_array_equal(ab.moe_ffn(x[order], routing, *experts), y[order])


def test_temporaries_do_not_grow_with_experts() -> None:
    def temporaries(experts: int) -> int:
        ids, floats, cotangent = problem(64, 32, 16, experts, 2)
        args = cast(floats, "bfloat16", "float32")
        function = jax.grad(functools.partial(loss, ids, cotangent, "swiglu", None), range(5))
        return jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes

    # The plan's offsets alone: 2 x 4 bytes an expert, with XLA's alignment.
    assert temporaries(512) - temporaries(8) < 512 * 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": (45, 41)}, ["[45, 41]", "[6, 40, 24]"]),
        ({"w_up": (6, 40, 25)}, ["[6, 40, 25]", "[6, 40, 24]"]),
        ({"w_down": (6, 40, 24)}, ["[6, 40, 24]", "[6, 24, 40]"]),
        ({"weights": (45, 3)}, ["[45, 3]", "[45, 2]"]),
        ({"x": (45, 1, 40)}, ["[45, 1, 40]", "[T, H]"]),
    ],
)
def test_wrong_shapes_name_both(change: dict[str, tuple[int, ...]], words: list[str]) -> None:
    ids, floats, _ = problem()
    floats = {**floats, **{name: np.zeros(shape) for name, shape in change.items()}}
    x, weights, *experts = cast(floats, "float32", "float32")
    with pytest.raises(ValueError, match="moe_ffn") as error:
        ab.moe_ffn(x, ab.Routing(jnp.asarray(ids), weights, None), *experts)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("rows", "weights"), [("float32", "bfloat16"), ("float16", "float16"), ("int32", "int32")]
)
def test_wrong_dtypes_name_both(rows: str, weights: str) -> None:
    ids, floats, _ = problem()
    x, route, *experts = cast(floats, rows, weights)
    with pytest.raises(ValueError, match=rows) as error:
        ab.moe_ffn(x, ab.Routing(jnp.asarray(ids), route, None), *experts)
    assert weights in str(error.value)


@pytest.mark.parametrize(
    "option",
    [
        {"activation": "relu"},
        {"recipe": "mxfp9"},
        {"implementation": "fast"},
        {"expert_parallel": 1},
    ],
)
def test_unknown_options_are_refused(option: dict[str, Any]) -> None:
    ids, floats, _ = problem()
    x, weights, *experts = cast(floats, "float32", "float32")
    with pytest.raises(ValueError, match=next(iter(option))):
        ab.moe_ffn(x, ab.Routing(jnp.asarray(ids), weights, None), *experts, **option)


@pytest.mark.parametrize("bad", [6, -2, 2**30])
def test_expert_id_out_of_range_is_an_error_and_the_next_call_is_right(bad: int) -> None:
    ids, floats, _ = problem()
    x, weights, *experts = cast(floats, "float32", "float32")
    run = jax.jit(lambda ids: ab.moe_ffn(x, ab.Routing(ids, weights, None), *experts))
    want = np.asarray(run(jnp.asarray(ids)))
    wrong = ids.copy()
    wrong[7, 1] = bad
    # JAX's cached inline calls raise ValueError, all others JaxRuntimeError.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=f"experts.*{bad}"):
        jax.block_until_ready(run(jnp.asarray(wrong)))
    np.testing.assert_array_equal(run(jnp.asarray(ids)), want)
