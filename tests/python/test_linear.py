# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
import ragged_oracle as oracle
from anabranch.ops import reference

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32


def normal(seed, shape, dtype=F32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def rounded(array, to):
    return np.asarray(jnp.asarray(array).astype(to))


# What meets: x's type, except that f16 and f32 meet as f32.
@pytest.mark.parametrize("recipe", [None, "bf16"])
@pytest.mark.parametrize("preferred", [None, F32, BF16])
@pytest.mark.parametrize(
    "x_dtype, w_dtype", [(F32, F32), (BF16, BF16), (BF16, F32), (F32, BF16), (F16, F32), (F16, F16)]
)
def test_matches_sums_in_double(x_dtype, w_dtype, preferred, recipe):
    x, w = normal(0, (3, 11, 37), x_dtype), normal(1, (37, 70), w_dtype)
    dtype = preferred or x_dtype
    dy = normal(2, (3, 11, 70), dtype)
    y, backward = jax.vjp(
        lambda x, w: ab.linear(x, w, recipe=recipe, preferred_element_type=preferred), x, w
    )
    dx, dw = backward(dy)
    assert (y.dtype, dx.dtype, dw.dtype) == (dtype, x_dtype, w_dtype)
    assert (y.shape, dx.shape, dw.shape) == (dy.shape, x.shape, w.shape)
    meet = BF16 if recipe == "bf16" or x_dtype == BF16 else F32
    rows, grads = rounded(x, meet).reshape(33, 37), rounded(dy, meet).reshape(33, 70)
    weight = rounded(w, meet)[None]
    oracle.forward(rows, weight, [33]).check(y.reshape(33, 70))
    oracle.dgrad(grads, weight, [33]).check(dx.reshape(33, 37))
    oracle.wgrad(rows, grads, [33]).check(dw[None])


def test_agrees_with_the_oracle():
    for x_dtype, w_dtype in ((F32, F32), (BF16, F32), (BF16, BF16)):
        x, w = normal(0, (5, 8), x_dtype), normal(1, (8, 3), w_dtype)
        y, expected = ab.linear(x, w), reference.linear(x, w)
        assert y.dtype == expected.dtype
        oracle.forward(x, rounded(w, x_dtype)[None], [5]).check(expected)


def test_transformations_change_no_bit():
    x, w, dy = normal(0, (40, 24), BF16), normal(1, (24, 64)), normal(2, (40, 64))

    def loss(x, w):
        return (ab.linear(x, w) * dy).sum()

    expected = jax.grad(loss, (0, 1))(x, w)

    def by_scan(x, w):
        return jax.lax.scan(lambda total, _: (total + loss(x, w), None), 0.0, None, 1)[0]

    for other in (jax.jit(loss), jax.checkpoint(loss), by_scan):
        for ours, same in zip(jax.jit(jax.grad(other, (0, 1)))(x, w), expected, strict=True):
            np.testing.assert_array_equal(ours, same)
    mapped = jax.vmap(ab.linear, (0, None))(jnp.stack([x, 2 * x]), w)
    np.testing.assert_array_equal(mapped[1], ab.linear(2 * x, w))


def test_shapes_without_rows_or_columns():
    for x_shape, w_shape in (
        ((0, 4), (4, 3)),
        ((2, 0, 4), (4, 3)),
        ((5, 0), (0, 3)),
        ((4,), (4, 3)),
    ):
        x, w = jnp.ones(x_shape), jnp.ones(w_shape)
        np.testing.assert_array_equal(ab.linear(x, w), x @ w)
        ours = jax.grad(lambda x, w: ab.linear(x, w).sum(), (0, 1))(x, w)
        theirs = jax.grad(lambda x, w: (x @ w).sum(), (0, 1))(x, w)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_second_derivative():
    x, w = normal(0, (4, 3)), normal(1, (3, 2))

    def norm(product):
        gradient = jax.grad(lambda w: (product(x, w) ** 3).sum())
        return lambda w: (gradient(w) ** 2).sum()

    ours = jax.grad(norm(ab.linear))(w)
    theirs = jax.grad(norm(reference.linear))(w)
    # Some 40 f32 operations deep; cancellation is bounded by the largest element.
    assert np.abs(ours - theirs).max() <= 100 * 2.0**-24 * np.abs(theirs).max()


def test_wrong_shapes_dtypes_and_recipes():
    for x, w in (((4, 3), (4, 5)), ((4, 3), (3,)), ((), (3, 5)), ((4, 3), (1, 3, 5))):
        with pytest.raises(ValueError, match="linear: x is float32") as error:
            ab.linear(jnp.ones(x), jnp.ones(w))
        assert str([*x]) in str(error.value) and str([*w]) in str(error.value)
    with pytest.raises(ValueError, match="int32"):
        ab.linear(jnp.ones((4, 3), jnp.int32), jnp.ones((3, 5)))
    with pytest.raises(ValueError, match="mxfp9"):
        ab.linear(jnp.ones((4, 3)), jnp.ones((3, 5)), recipe="mxfp9")
