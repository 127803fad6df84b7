# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Products under a recipe against the recipe spelled out with `quantize` and numpy, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
from anabranch.ops.quantize import GEMMS, by_gemm, get_recipe, scope
from anabranch.ops.quantize.products import OPERANDS, recipe_gemm

SIZES = (40, 0, 17, 64)
SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], np.float64)
DETERMINISTIC = ("mxfp8", "mxfp8_hybrid", "fp8_block", "nvfp4-sr", "nvfp4-sr-rht-2d", "mxfp8+floor")


def problem(seed=0, k=160, n=144):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (rng.normal(size=shape) * 2.0 ** rng.integers(-4, 4, shape[:-1] + (1,))).astype(
            np.float32
        )

    rows = sum(SIZES) + 5  # the last 5 belong to no group
    x = jnp.asarray(normal(rows, k), jnp.bfloat16)
    return x, jnp.asarray(normal(len(SIZES), k, n)), jnp.asarray(normal(rows, n), jnp.bfloat16)


def quantised(x, format, axis, recipe):
    mode = "rceil" if format.startswith("nvfp4") else recipe.scale_mode
    q = ab.quantize(x, format, axis=axis, scale_mode=mode)
    return np.asarray(q.dequantize(), np.float64)


def hadamard(x):
    """Rows of x in 16s, the last ones filled with zeros, transformed and rounded to bf16."""
    x = np.asarray(x, np.float64)
    x = np.pad(x, ((0, -x.shape[0] % 16), (0, 0))).reshape(-1, 16, x.shape[1])
    matrix = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(16)] for i in range(16)]) / 4
    out = np.einsum("ij,bjn->bin", matrix * SIGNS, x).reshape(-1, x.shape[2])
    return jnp.asarray(out.astype(np.float32), jnp.bfloat16)


def spelled_out(x, w, dy, recipe):
    y, dx, dw = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(w.shape)
    row = 0
    for group, size in enumerate(SIZES):
        at = slice(row, row + size)
        row += size
        if size == 0:
            continue
        y[at] = quantised(x[at], recipe.x, -1, recipe) @ quantised(w[group], recipe.w, -2, recipe)
        dx[at] = (
            quantised(dy[at], recipe.dy, -1, recipe) @ quantised(w[group], recipe.w, -1, recipe).T
        )
        tokens = (x[at], dy[at])
        if recipe.hadamard:
            tokens = tuple(map(hadamard, tokens))
        dw[group] = quantised(tokens[0], recipe.x, -2, recipe).T @ quantised(
            tokens[1], recipe.dy, -2, recipe
        )
    return y, dx, dw


def close(got, want, terms, magnitude):
    """f32 sums of `terms` exact products whose sizes add up to `magnitude`, and a bf16 rounding."""
    bound = (terms + 4) * 2.0**-24 * magnitude + 2.0**-8 * np.abs(want)
    assert (np.abs(np.asarray(got, np.float64) - want) <= bound + 1e-30).all()


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_all_three_products_have_the_recipes_arithmetic(name):
    x, w, dy = problem()
    recipe = get_recipe(name)
    sizes = jnp.array(SIZES)
    y, back = jax.vjp(lambda x, w: ab.ragged_dot(x, w, sizes, recipe=name), x, w)
    assert y.dtype == jnp.result_type(x, w)
    dx, dw = back(dy.astype(y.dtype))
    assert dx.dtype == x.dtype
    assert dw.dtype == w.dtype
    want = spelled_out(x, w, dy, recipe)
    sizes_of = spelled_out(abs(x), abs(w), abs(dy), recipe)  # of the terms, up to their rounding
    for got, exact, size, terms in zip(
        (y, dx, dw), want, sizes_of, (x.shape[1], dy.shape[1], max(SIZES)), strict=True
    ):
        close(got, exact, terms, size.max(initial=0))
    assert not np.asarray(y)[sum(SIZES) :].any()
    assert not np.asarray(dw)[1].any()


def test_a_tensor_scale_of_one_operand_enters_the_product():
    x, w, dy = problem()
    mixed = ab.Recipe("mixed", "mxfp8_e4m3", "nvfp4_16x16", "nvfp4")
    y, back = jax.vjp(lambda x, w: ab.ragged_dot(x, w, jnp.array(SIZES), recipe=mixed), x, w)
    want = spelled_out(x, w, dy, mixed)
    sizes_of = spelled_out(abs(x), abs(w), abs(dy), mixed)
    for got, exact, size in zip((y, *back(dy.astype(y.dtype))), want, sizes_of, strict=True):
        close(got, exact, x.shape[1], size.max(initial=0))


def test_linear_is_one_group():
    x, w, dy = problem()
    y, back = jax.vjp(lambda x, w: ab.linear(x, w, recipe="mxfp8"), x[:40], w[0])
    assert y.dtype == x.dtype
    one = jnp.array([40])
    same, back_too = jax.vjp(
        lambda x, w: ab.ragged_dot(x, w, one, recipe="mxfp8", preferred_element_type=x.dtype),
        x[:40], w[:1],
    )  # fmt: skip
    np.testing.assert_array_equal(y, same)
    dx, dw = back(dy[:40])
    want = back_too(dy[:40])
    np.testing.assert_array_equal(dx, want[0])
    np.testing.assert_array_equal(dw, want[1][0])


@pytest.mark.parametrize("name", ("mxfp8", "nvfp4"))
def test_single_products_take_another_recipe(name):
    x, w, dy = problem()
    x, dy, w, key = x[:40], dy[:40], w[:1], jnp.arange(4, dtype=jnp.int32)
    low = get_recipe(name)

    @functools.partial(jax.jit, static_argnums=0)
    def run(recipe):
        given = (jnp.array([40]), key)
        y, back = jax.vjp(
            lambda x, w, probe: recipe_gemm(x, w, *given, probe, jnp.dtype(x.dtype), recipe),
            x, w, jnp.zeros((6, 5)),
        )  # fmt: skip
        return y, *back(dy)

    y, back = jax.vjp(lambda x, w: ab.linear(x, w, recipe="bf16"), x, w[0])
    plain, lowered = (y, *back(dy)), run(low)
    for index, gemm in enumerate(GEMMS):
        *products, probe = run(by_gemm(**{**dict.fromkeys(GEMMS, low), gemm: None}))
        alone = run(by_gemm(**{**dict.fromkeys(GEMMS), gemm: low}))
        for other in range(3):
            expected = (plain if other == index else lowered)[other]
            np.testing.assert_array_equal(
                products[other], np.reshape(expected, products[other].shape)
            )
        np.testing.assert_array_equal(alone[index], lowered[index])
        rows = slice(2 * index, 2 * index + 2)
        assert not np.asarray(probe)[rows].any()
        np.testing.assert_array_equal(np.asarray(probe + alone[3]), lowered[3])
    assert by_gemm(None, None, None) is None and by_gemm(low, low, low) == low


@functools.partial(jax.jit, static_argnums=0)
def gradients(recipe, key, x, w, dy):
    words = jnp.stack([key, 1, 0, 0]).astype(jnp.int32)

    def run(x, w, probe):
        return recipe_gemm(x, w, jnp.array(SIZES), words, probe, jnp.dtype(jnp.bfloat16), recipe)

    return jax.vjp(run, x, w, jnp.zeros((6, 5)))[1](dy)


def test_stochastic_gradients_are_unbiased_and_repeat():
    x, w, dy = problem()
    # Not NVFP4: its block scales are rounded, so that the largest elements may saturate.
    recipe = ab.Recipe("sr", *("mxfp8_e4m3",) * 3, stochastic_gradients=True)
    first = gradients(recipe, 1, x, w, dy)
    for a, b in zip(first, gradients(recipe, 1, x, w, dy), strict=True):
        np.testing.assert_array_equal(a, b)
    runs = [np.asarray(gradients(recipe, key, x, w, dy)[1]) for key in range(16)]
    assert (runs[0] != runs[1]).any()
    # Without the rounding of dy: x quantised alone.
    plain, row = np.zeros(w.shape), 0
    for group, size in enumerate(SIZES):
        at = slice(row, row + size)
        row += size
        if size:
            plain[group] = quantised(x[at], recipe.x, -2, recipe).T @ np.asarray(dy[at], np.float64)
    mean, sigma = np.mean(runs, 0), np.std(runs, 0, ddof=1) / 4
    # What is left of the error of the mean is its own variance; a bias of one draw's sigma would give 17.
    ratio = np.sum((mean - plain) ** 2) / np.sum(sigma**2)
    assert 0.5 < ratio < 2


def test_probes_carry_the_statistics():
    x, w, dy = problem()
    *_, probe = gradients(get_recipe("mxfp8+floor"), 1, x, w, dy)
    elements, saturated, flushed, signal, noise = np.asarray(probe).T
    rows = sum(SIZES)
    np.testing.assert_array_equal(
        elements,
        [rows * 160, w.size, rows * 144, w.size, rows * 160, rows * 144],
    )
    assert (saturated > 0).all()  # FLOOR saturates about 1 % of normal numbers
    assert (saturated < 0.05 * elements).all()
    assert (flushed < 0.05 * elements).all()
    decibel = 10 * np.log10(signal / noise)
    assert (decibel > 25).all()
    assert len(OPERANDS) == 6
    *_, plain = gradients(get_recipe("mxfp8"), 1, x, w, dy)
    np.testing.assert_array_equal(np.asarray(plain)[:, 1], 0)


@pytest.mark.parametrize("name", ("mxfp8", "nvfp4"))
def test_moe_ffn_is_made_of_these_products(name):
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(48, 64)), jnp.bfloat16)
    experts = jnp.asarray(np.argsort(rng.random((48, 5)), 1)[:, :2], jnp.int32)
    routing = ab.Routing(experts, jnp.asarray(rng.dirichlet([1, 1], 48), jnp.float32), None)
    w_gate, w_up, w_down = (
        jnp.asarray(rng.normal(size=(5, *shape)) / 8, jnp.float32)
        for shape in ((64, 32), (64, 32), (32, 64))
    )
    y = ab.moe_ffn(x, routing, w_gate, w_up, w_down, recipe=name)
    plan = ab.ragged_plan(experts, 5)
    rows, weights = ab.gather_rows(x, plan, routing.weights)
    options = {"recipe": name, "preferred_element_type": jnp.bfloat16}
    gate = ab.ragged_dot(rows, w_gate, plan.group_sizes, **options).astype(jnp.float32)
    up = ab.ragged_dot(rows, w_up, plan.group_sizes, **options).astype(jnp.float32)
    hidden = (jax.nn.silu(gate) * up).astype(jnp.bfloat16)
    options["preferred_element_type"] = jnp.float32
    out = ab.ragged_dot(hidden, w_down, plan.group_sizes, **options)
    want = ab.combine_rows((weights[:, None] * out).astype(jnp.bfloat16), plan)
    # The two spellings may round one bf16 of the activation differently.
    np.testing.assert_allclose(
        np.asarray(y, np.float32), np.asarray(want, np.float32), atol=0.05 * float(abs(want).max())
    )
    plain = ab.moe_ffn(x, routing, w_gate, w_up, w_down)
    error = jnp.linalg.norm((y - plain).astype(jnp.float32)) / jnp.linalg.norm(
        plain.astype(jnp.float32)
    )
    assert 0.005 < error < (0.35 if name == "nvfp4" else 0.1)  # numerics: 0.038 and 0.135 a product
    gradient = jax.grad(
        lambda w: ab.moe_ffn(x, routing, w_gate, w_up, w, recipe=name).sum().astype(float)
    )
    assert np.isfinite(np.asarray(gradient(w_down))).all()


def test_layers_take_the_recipe_of_their_run():
    x, w, _ = problem()
    recipes = (get_recipe("mxfp8"), None)
    with scope.run(recipes, jnp.zeros(2, jnp.uint32), scope.new_probes(2)):
        outside = ab.linear(x, w[0])
        with scope.layer(0):
            inside, chosen = ab.linear(x, w[0]), ab.linear(x, w[0], recipe="bf16")
            router = ab.linear(x.astype(jnp.float32), w[0])
        with scope.layer(1):
            high = ab.linear(x, w[0])
    plain = ab.linear(x, w[0])
    np.testing.assert_array_equal(inside, ab.linear(x, w[0], recipe="mxfp8"))
    for other in (outside, chosen, high):
        np.testing.assert_array_equal(other, plain)
    np.testing.assert_array_equal(router, ab.linear(x.astype(jnp.float32), w[0]))


@pytest.mark.parametrize("name", ("mxfp9", "nvfp4+floor", "mxfp8-sr", "mxfp8+up", 3))
def test_unknown_recipes_are_named(name):
    with pytest.raises(ValueError, match="recipe="):
        ab.linear(jnp.ones((4, 4)), jnp.ones((4, 4)), recipe=name)
