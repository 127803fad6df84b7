# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""rms_norm and add_rms_norm against sums in f64, values and gradients with random cotangents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anabranch.ops import reference, token_tree
from anabranch.ops.rms_norm import add_rms_norm, rms_norm

F32, BF16, F16 = jnp.float32, jnp.bfloat16, jnp.float16


def normal(seed, shape, dtype=F32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def in_f64(y_grad, x, weight):
    """Value and gradients in f64 on the same numbers."""
    with jax.enable_x64(True):
        x, weight, y_grad = (jnp.asarray(np.asarray(a, np.float64)) for a in (x, weight, y_grad))
        y, pullback = jax.vjp(reference.rms_norm, x, weight)
        return [np.asarray(a) for a in (y, *pullback(y_grad))]


def close(actual, expected, magnitude, columns):
    # Rounding of the result, and sums of `columns` / 64 + 64 terms that enter up to four times.
    eps = float(jnp.finfo(actual.dtype).eps) + 4 * (columns / 64 + 70) * 2.0**-23
    assert actual.shape == expected.shape
    error = np.abs(np.asarray(actual, np.float64) - np.asarray(expected))
    assert np.all(error <= eps * magnitude), (error / magnitude).max() / eps


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 40), (7, 130)])
@pytest.mark.parametrize("x_dtype, y_dtype", [(F32, F32), (F32, BF16), (BF16, BF16), (F16, F16)])
def test_matches_f64(shape, x_dtype, y_dtype):
    x, weight = normal(0, shape, x_dtype), normal(1, shape[-1:])
    y_grad = normal(2, shape, y_dtype)
    y, pullback = jax.vjp(lambda x, w: rms_norm(x, w, 1e-6, y_dtype), x, weight)
    want, *want_grads = in_f64(y_grad, x, weight)
    assert y.dtype == y_dtype
    close(y, want, np.abs(want), shape[-1])
    grads = pullback(y_grad)
    assert [g.dtype for g in grads] == [x_dtype, F32]
    # Both gradients are sums: bounded by the sizes of their terms.
    x, weight, dy = (np.abs(np.asarray(a, np.float64)) for a in (x, weight, y_grad))
    inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
    mean = (dy * weight * x * inverse).mean(axis=-1, keepdims=True)
    close(grads[0], want_grads[0], inverse * (dy * weight + x * inverse * mean), shape[-1])
    rows = (dy * x * inverse).reshape(-1, shape[-1]).sum(axis=0)
    close(grads[1], want_grads[1], rows, shape[-1])


@pytest.mark.parametrize("x_dtype, y_dtype", [(F32, BF16), (F32, F32), (BF16, BF16)])
def test_addition_and_normalisation_are_those_of_two_steps(x_dtype, y_dtype):
    x, branch, weight = (
        normal(0, (3, 5, 64), x_dtype),
        normal(1, (3, 5, 64), y_dtype),
        normal(2, (64,)),
    )

    def two_steps(x, branch, weight):
        total = x + branch.astype(x.dtype)
        return total, rms_norm(total, weight, 1e-6, branch.dtype)

    cotangents = normal(3, x.shape, x_dtype), normal(4, x.shape, y_dtype)
    got, pullback = jax.vjp(jax.jit(add_rms_norm), x, branch, weight)
    want, want_pullback = jax.vjp(jax.jit(two_steps), x, branch, weight)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(g, np.float32), np.asarray(w, np.float32))
    for g, w in zip(pullback(cotangents), want_pullback(cotangents), strict=True):
        assert g.dtype == w.dtype
        # The two-step gradient of x is rounded to x's type before the other one is added.
        eps = float(jnp.finfo(w.dtype).eps) + 2 * float(jnp.finfo(x_dtype).eps)
        size = np.abs(np.asarray(w, np.float32)).max()
        np.testing.assert_allclose(
            np.asarray(g, np.float32), np.asarray(w, np.float32), rtol=0, atol=2 * eps * size
        )


def test_weight_gradient_follows_the_token_tree():
    x, weight, y_grad = normal(0, (16, 33)), normal(1, (33,)), normal(2, (16, 33))

    def gradient(x, y_grad, leaves):
        with token_tree.scope(token_tree.TokenTree(leaves)):
            return jax.vjp(lambda w: rms_norm(x, w), weight)[1](y_grad)[0]

    halves = [gradient(x[i : i + 8], y_grad[i : i + 8], 4) for i in (0, 8)]
    np.testing.assert_array_equal(halves[0] + halves[1], gradient(x, y_grad, 8))


def test_works_under_remat_scan_and_vmap():
    x, weight = normal(0, (4, 6, 32)), normal(1, (32,))
    plain = jax.grad(lambda x: jnp.sum(rms_norm(x, weight) ** 2))(x)
    remat = jax.grad(jax.checkpoint(lambda x: jnp.sum(rms_norm(x, weight) ** 2)))(x)
    np.testing.assert_array_equal(plain, remat)
    scanned = jax.lax.scan(lambda _, row: (None, rms_norm(row, weight)), None, x)[1]
    np.testing.assert_array_equal(scanned, rms_norm(x, weight))
    np.testing.assert_array_equal(jax.vmap(lambda row: rms_norm(row, weight))(x), scanned)


def test_shapes_that_disagree_are_printed():
    with pytest.raises(ValueError, match=r"weight has shape \(3,\), x \(2, 4\)"):
        rms_norm(jnp.ones((2, 4)), jnp.ones(3))
    with pytest.raises(ValueError, match=r"x has shape \(2, 4\), branch \(4,\)"):
        add_rms_norm(jnp.ones((2, 4)), jnp.ones(4), jnp.ones(4))
