# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab

# Operands are small integers: every sum is exact in f32, so results are compared bit for bit.
BF16, F32 = jnp.bfloat16, jnp.float32


def integers(seed, shape, dtype=F32):
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape), dtype)


def numbers(contracting, batch, ragged, group):
    return jax.lax.RaggedDotDimensionNumbers((contracting, batch), ragged, group)


# name: lhs shape, rhs shape, group sizes, dimension numbers
CASES = {
    "free": ((9, 4), (3, 4, 5), [2, 0, 4], numbers(((1,), (1,)), ((), ()), [0], [0])),
    "free, rhs transposed": (
        (9, 4),
        (3, 5, 4),
        [2, 3, 4],
        numbers(((1,), (2,)), ((), ()), [0], [0]),
    ),
    "free, group last": ((9, 4), (4, 5, 3), [2, 3, 4], numbers(((1,), (0,)), ((), ()), [0], [2])),
    "free, lhs transposed": (
        (4, 9),
        (3, 4, 5),
        [1, 1, 6],
        numbers(((0,), (1,)), ((), ()), [1], [0]),
    ),
    "free, two contracted": (
        (9, 2, 4),
        (3, 4, 5, 2),
        [2, 3, 4],
        numbers(((1, 2), (3, 1)), ((), ()), [0], [0]),
    ),
    "free, batch": (
        (2, 9, 4),
        (3, 2, 4, 5),
        [[2, 3, 4], [0, 9, 0]],
        numbers(((2,), (2,)), ((0,), (1,)), [1], [0]),
    ),
    "free, batch, one list of sizes": (
        (2, 9, 4),
        (3, 2, 4, 5),
        [2, 3, 1],
        numbers(((2,), (2,)), ((0,), (1,)), [1], [0]),
    ),
    "free, inner and outer rows": (
        (2, 6, 3, 4),
        (2, 4, 5),
        [[2, 3], [0, 6]],
        numbers(((3,), (1,)), ((), ()), [1], [0]),
    ),
    "free, no columns, nothing contracted": (
        (5, 2),
        (2,),
        [2, 3],
        numbers(((), ()), ((), ()), [0], [0]),
    ),
    "contracting": ((9, 4), (9, 5), [2, 0, 4], numbers(((0,), (0,)), ((), ()), [0], [])),
    "contracting, last": ((4, 9), (5, 9), [2, 3, 4], numbers(((1,), (1,)), ((), ()), [1], [])),
    "contracting, batch": (
        (9, 2, 4),
        (2, 9, 5),
        [[2, 3, 4], [0, 0, 1]],
        numbers(((0,), (1,)), ((1,), (0,)), [0], []),
    ),
    "contracting, inner and outer": (
        (2, 6, 3, 4),
        (6, 5, 3, 2),
        [[2, 3], [0, 6]],
        numbers(((0, 1, 2), (3, 0, 2)), ((), ()), [1], []),
    ),
    "batch": ((3, 9, 4), (3, 4, 5), [1, 2], numbers(((2,), (1,)), ((0,), (0,)), [0], [])),
    "batch, two, mixed order": (
        (9, 3, 4, 2),
        (2, 4, 5, 3),
        [1, 2],
        numbers(((2,), (1,)), ((1, 3), (3, 0)), [1], []),
    ),
}


@pytest.mark.parametrize("dtype, preferred", [(F32, None), (BF16, None), (BF16, F32)])
@pytest.mark.parametrize("case", CASES)
def test_equals_lax(case, dtype, preferred):
    lhs_shape, rhs_shape, sizes, dims = CASES[case]
    lhs, rhs = integers(0, lhs_shape, dtype), integers(1, rhs_shape, dtype)
    sizes = jnp.asarray(sizes, jnp.int32)
    ours, theirs = (
        jax.jit(lambda *a: dot(*a, dims, preferred_element_type=preferred))(lhs, rhs, sizes)  # noqa: B023
        for dot in (ab.ragged_dot_general, jax.lax.ragged_dot_general)
    )
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_array_equal(ours, theirs)


# The product is linear in each operand, so <dy, f(u)> = <gradient(dy), u> for every u: exact in
# integers, and defined also where JAX has no gradient of its own.
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_transposes(case):
    lhs_shape, rhs_shape, sizes, dims = CASES[case]
    lhs, rhs = integers(0, lhs_shape), integers(1, rhs_shape)
    sizes = jnp.asarray(sizes, jnp.int32)

    def product(lhs, rhs):
        return ab.ragged_dot_general(lhs, rhs, sizes, dims)

    u, v = integers(3, lhs_shape), integers(4, rhs_shape)
    dy = integers(2, jax.eval_shape(product, lhs, rhs).shape)

    @jax.jit
    def both_sides(lhs, rhs):
        d_lhs, d_rhs = jax.vjp(product, lhs, rhs)[1](dy)
        return (
            ((d_lhs * u).sum(), (dy * product(u, rhs)).sum()),
            ((d_rhs * v).sum(), (dy * product(lhs, v)).sum()),
        )

    for left, right in both_sides(lhs, rhs):
        assert float(left) == float(right)


def test_empty_batches_and_groups():
    dims = CASES["free, batch"][3]
    for lhs_shape, rhs_shape, sizes in [
        ((0, 9, 4), (3, 0, 4, 5), (0, 3)),
        ((2, 0, 4), (3, 2, 4, 5), (2, 3)),
        ((2, 9, 0), (3, 2, 0, 5), (2, 3)),
    ]:
        arguments = jnp.ones(lhs_shape), jnp.ones(rhs_shape), jnp.zeros(sizes, jnp.int32), dims
        ours, theirs = (
            dot(*arguments) for dot in (ab.ragged_dot_general, jax.lax.ragged_dot_general)
        )
        np.testing.assert_array_equal(ours, theirs)


def test_vmap_equals_a_loop():
    lhs_shape, rhs_shape, sizes, dims = CASES["contracting, batch"]
    lhs, rhs = integers(0, (3, *lhs_shape)), integers(1, (3, *rhs_shape))
    sizes = jnp.asarray(sizes, jnp.int32)

    def product(lhs, rhs):
        return ab.ragged_dot_general(lhs, rhs, sizes, dims)

    mapped = jax.jit(jax.vmap(product))(lhs, rhs)
    for i in range(3):
        np.testing.assert_array_equal(mapped[i], product(lhs[i], rhs[i]))


@pytest.mark.parametrize(
    "lhs, rhs, sizes, dims",
    [
        ((9, 4), (9, 5), (2,), numbers(((1,), (0,)), ((), ()), [0], [])),  # no group dimension
        ((9, 4), (8, 5), (2,), numbers(((0,), (0,)), ((), ()), [0], [])),  # 9 against 8
        ((9, 4), (3, 4, 5), (2,), numbers(((1,), (1,)), ((), ()), [0], [0])),  # 3 groups, 2 sizes
        ((9, 4), (3, 4, 5), (3,), numbers(((1,), (1,)), ((), ()), [0, 1], [0])),
        ((9, 4), (3, 4, 5), (3,), numbers(((1,), (1,)), ((), ()), [2], [0])),
    ],
)
def test_what_does_not_fit_is_printed(lhs, rhs, sizes, dims):
    with pytest.raises(ValueError, match="ragged_dot_general: lhs float32") as error:
        ab.ragged_dot_general(jnp.ones(lhs), jnp.ones(rhs), jnp.ones(sizes, jnp.int32), dims)
    for shape in (lhs, rhs, sizes):
        assert str([*shape]) in str(error.value)
