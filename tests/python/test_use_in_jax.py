# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import inspect
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
from anabranch.ops import use_in_jax as module


def integers(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape), dtype)


X, W, SIZES = integers(0, (9, 4)), integers(1, (3, 4, 5)), jnp.array([2, 0, 5])


def lowered(function, *args):
    return jax.jit(function).lower(*args).as_text()


def test_the_private_names_exist_and_fit():
    primitive, definition, mlir = module.private_names()
    assert primitive.name == "ragged_dot_general"
    parameters = inspect.signature(definition).parameters
    needed = {"ragged_dot_dimension_numbers", "precision", "preferred_element_type", "group_offset"}
    assert needed <= set(parameters)
    assert {"register_lowering", "lower_fun"} <= set(dir(mlir))


def test_context_manager_begins_and_ends():
    def product(x):
        return jax.lax.ragged_dot(x, W, SIZES)

    before = product(X)
    assert "anabranch_grouped_gemm" not in lowered(product, X)
    with ab.use_in_jax():
        with ab.use_in_jax():
            pass
        assert "anabranch_grouped_gemm" in lowered(product, X)
        np.testing.assert_array_equal(product(X), before)
    assert not module.Use.is_active()
    assert "anabranch_grouped_gemm" not in lowered(product, X)


def test_gradients_use_all_three_products_without_a_transpose():
    def loss(x, w):
        return (jax.lax.ragged_dot(x, w, SIZES) ** 2).sum()

    gradient = jax.grad(loss, (0, 1))
    expected = gradient(X, W)
    with ab.use_in_jax():
        text = jax.jit(gradient).lower(X, W).compile().as_text()
        actual = gradient(X, W)
    for target in ("grouped_gemm", "grouped_gemm_dgrad", "grouped_gemm_wgrad"):
        assert f'custom_call_target="anabranch_{target}"' in text
    for operation in (" dot(", " transpose(", " copy("):
        assert operation not in text
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_forward_mode_vmap_scan_and_remat_stay():
    xs, ws = integers(2, (2, 9, 4)), integers(3, (2, 3, 4, 5))
    sizes = jnp.array([[2, 0, 5], [1, 1, 1]])

    def results():
        def step(x, w):
            return jax.lax.ragged_dot(x, jnp.concatenate([w, w], 2)[:, :, :4], SIZES), None

        def loss(x):
            return jax.lax.scan(jax.checkpoint(step), x, ws)[0].sum()

        return (
            jax.jvp(lambda x: jax.lax.ragged_dot(x, W, SIZES), (X,), (xs[0],))[1],
            jax.vmap(jax.lax.ragged_dot)(xs, ws, sizes),
            jax.grad(loss)(X),
        )

    expected = results()
    with ab.use_in_jax():
        actual = results()
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_is_not_served_is_left_to_jax():
    x, w = X.astype(jnp.int32), W.astype(jnp.int32)
    expected = jax.lax.ragged_dot(x, w, SIZES)
    with ab.use_in_jax():
        assert "anabranch" not in lowered(jax.lax.ragged_dot, x, w, SIZES)
        np.testing.assert_array_equal(jax.lax.ragged_dot(x, w, SIZES), expected)
        np.testing.assert_array_equal(ab.ragged_dot(x, w, SIZES), expected)
        with pytest.raises(NotImplementedError):
            jax.lax.ragged_dot(X, W, SIZES, group_offset=1)


def test_half_precision():
    with ab.use_in_jax():
        for dtype in (jnp.float16, jnp.bfloat16):
            y = jax.lax.ragged_dot(X.astype(dtype), W.astype(dtype), SIZES)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y, ab.ragged_dot(X, W, SIZES).astype(dtype))


def test_environment_variable_takes_effect_at_import():
    program = (
        "import jax, jax.numpy as jnp, anabranch;"
        "f = jax.jit(jax.lax.ragged_dot);"
        "a = jnp.ones((4, 2)), jnp.ones((2, 2, 3)), jnp.array([1, 2]);"
        "assert 'anabranch_grouped_gemm' in f.lower(*a).as_text(); assert f(*a)[2, 0] == 2"
    )
    environment = {**os.environ, "ANABRANCH_USE_IN_JAX": "1"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)
