# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import functools
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import anabranch as ab
import ragged_oracle as oracle
from anabranch.ops import reference

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
SIZES = [13, 0, 1, 24, 0, 5]  # 43 rows of 50 belong to a group


def normal(seed, shape, dtype=F32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def problem(x_dtype, w_dtype, y_dtype, k=37, n=70, rows=50, sizes=SIZES):
    """x, w, a random cotangent and the sizes."""
    return (
        normal(0, (rows, k), x_dtype),
        normal(1, (len(sizes), k, n), w_dtype),
        normal(2, (rows, n), y_dtype),
        jnp.asarray(sizes, jnp.int32),
    )


def exact_zero(array):
    array = np.asarray(array, np.float32)
    return (array == 0).all() and not np.signbit(array).any()


@pytest.mark.parametrize("preferred", [None, F32])
@pytest.mark.parametrize(
    "x_dtype, w_dtype",
    [(F32, F32), (BF16, BF16), (F16, F16), (BF16, F32), (F32, BF16), (F16, BF16)],
)
def test_matches_sums_in_double(x_dtype, w_dtype, preferred):
    def product(x, w, sizes):
        return ab.ragged_dot(x, w, sizes, preferred_element_type=preferred)

    dtype = jax.eval_shape(product, *problem(x_dtype, w_dtype, F32)[:2], jnp.asarray(SIZES)).dtype
    x, w, dy, sizes = problem(x_dtype, w_dtype, dtype)
    y, backward = jax.vjp(lambda x, w: product(x, w, sizes), x, w)
    dx, dw = backward(dy)
    assert (dx.dtype, dw.dtype) == (x.dtype, w.dtype)
    oracle.forward(x, w, SIZES).check(y)
    oracle.dgrad(dy, w, SIZES).check(dx)
    oracle.wgrad(x, dy, SIZES).check(dw)
    assert exact_zero(y[43:]) and exact_zero(dx[43:])


def test_result_dtypes_are_those_of_lax():
    dtypes = (F32, BF16, F16)
    for x_dtype in dtypes:
        for w_dtype in dtypes:
            for preferred in (None, *dtypes):
                x, w = jnp.ones((3, 2), x_dtype), jnp.ones((1, 2, 4), w_dtype)
                ours, theirs = (
                    jax.eval_shape(
                        functools.partial(dot, preferred_element_type=preferred),
                        *(x, w, jnp.array([3])),
                    )
                    for dot in (ab.ragged_dot, jax.lax.ragged_dot)
                )
                assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, jnp.uint8])
def test_other_dtypes_are_left_to_jax(dtype):
    x, w, sizes = jnp.ones((5, 3), dtype), jnp.ones((2, 3, 4), dtype), jnp.array([2, 3])
    ours, theirs = ab.ragged_dot(x, w, sizes), jax.lax.ragged_dot(x, w, sizes)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_double_is_left_to_jax():
    with jax.enable_x64(True):
        x, w = jnp.ones((5, 3), jnp.float64), jnp.full((2, 3, 4), 1 / 3, jnp.float64)
        sizes = jnp.array([2, 3], jnp.int64)
        np.testing.assert_array_equal(ab.ragged_dot(x, w, sizes), jax.lax.ragged_dot(x, w, sizes))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32])
def test_sizes_of_any_integer_type(dtype):
    x, w, _, sizes = problem(F32, F32, F32)
    y = ab.ragged_dot(x, w, jnp.asarray(SIZES, dtype))
    np.testing.assert_array_equal(y, ab.ragged_dot(x, w, sizes))


def test_a1_empty_groups_get_zero_weight_gradient():
    ids = np.arange(32) % 6
    small = (32, 64, 43, np.bincount(ids, minlength=18), F32)
    large = (3273, 256, 96, np.array([162, 0, 2577, 446, 0, 83]), BF16)
    for rows, k, n, sizes, dtype in (small, large):
        x, w = normal(0, (rows, k), dtype), normal(1, (len(sizes), k, n), dtype)
        dy, gs = normal(2, (rows, n), dtype), jnp.asarray(sizes, jnp.int32)
        gradient = jax.jit(jax.grad(lambda w: (ab.ragged_dot(x, w, gs) * dy).sum()))  # noqa: B023
        exact = oracle.wgrad(x, dy, sizes)
        for _ in range(20):
            junk = [jnp.full((len(sizes), k, n), jnp.nan, dtype).block_until_ready()]
            junk.clear()  # recycled buffers are what exposes a group that is not written
            dw = gradient(w)
            assert exact_zero(dw[sizes == 0])
        exact.check(dw)


@pytest.mark.parametrize("rows, k, sizes", [(0, 5, [0, 0]), (16, 5, [0, 0]), (16, 0, [7, 9])])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a3_nothing_was_routed(rows, k, sizes, dtype):
    x, w, gs = jnp.ones((rows, k), dtype), jnp.ones((2, k, 7), dtype), jnp.asarray(sizes)
    for dot in (ab.ragged_dot, jax.jit(ab.ragged_dot)):
        y = dot(x, w, gs)
        assert y.shape == (rows, 7) and exact_zero(y)
    gradient = jax.grad(lambda x, w: ab.ragged_dot(x, w, gs).sum(), (0, 1))
    for function in (gradient, jax.jit(gradient)):
        dx, dw = function(x, w)
        assert dx.shape == x.shape and exact_zero(dx)
        assert dw.shape == w.shape and exact_zero(dw)


@pytest.mark.parametrize("rows", [32768, 32800, 32802, 40002, 49150])
def test_a6_many_rows_equal_the_same_in_chunks(rows):
    k, n, chunk = 64, 32, 4096
    sizes = np.array([rows // 2 + 1, 3, rows // 4, 0])
    sizes[3] = rows - sizes.sum() - 1  # one row belongs to no group
    x, w = normal(0, (rows, k)), normal(1, (4, k, n))
    whole = np.asarray(ab.ragged_dot(x, w, jnp.asarray(sizes, jnp.int32)))
    ends = np.cumsum(sizes)
    for begin in range(0, rows, chunk):
        end = min(begin + chunk, rows)
        part = np.clip(ends, begin, end) - np.clip(ends - sizes, begin, end)
        y = ab.ragged_dot(x[begin:end], w, jnp.asarray(part, jnp.int32))
        np.testing.assert_array_equal(whole[begin:end], y)


def test_a6_foreign_layouts_equal_the_contiguous_copy():
    x, w, _, gs = problem(BF16, BF16, BF16, k=64, n=32)
    y = np.asarray(ab.ragged_dot(x, w, gs))
    transposed = jax.jit(lambda z, w: ab.ragged_dot(z.T, w, gs))
    unit_axis = jax.jit(lambda x3, w: ab.ragged_dot(x3[:, 0], w, gs))
    swapped = jax.jit(lambda x, w: ab.ragged_dot(x, w.transpose(0, 2, 1), gs))
    np.testing.assert_array_equal(transposed(jnp.asarray(np.asarray(x).T.copy()), w), y)
    np.testing.assert_array_equal(unit_axis(x[:, None, :], w), y)
    np.testing.assert_array_equal(swapped(x, w.transpose(0, 2, 1)), y)
    one_row = jax.jit(lambda r, w: ab.ragged_dot(jnp.broadcast_to(r, x.shape), w, gs))(x[3], w)
    copied = ab.ragged_dot(jnp.asarray(np.tile(np.asarray(x[3]), (50, 1))), w, gs)
    np.testing.assert_array_equal(one_row, copied)


def test_transformations_change_no_bit():
    x, w, dy, gs = problem(BF16, BF16, BF16)

    def loss(x, w):
        return (ab.ragged_dot(x, w, gs).astype(F32) * dy).sum()

    expected = jax.grad(loss, (0, 1))(x, w)

    def by_scan(x, w):
        return jax.lax.scan(lambda total, _: (total + loss(x, w), None), 0.0, None, 1)[0]

    for other in (jax.jit(loss), jax.checkpoint(loss), jax.checkpoint(jax.jit(loss)), by_scan):
        for ours, same in zip(jax.jit(jax.grad(other, (0, 1)))(x, w), expected, strict=True):
            np.testing.assert_array_equal(ours, same)


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)])
def test_vmap_equals_a_loop(axes):
    x, w = normal(0, (3, 10, 7)), normal(1, (3, 2, 7, 5))
    sizes = jnp.array([[4, 6], [0, 3], [10, 0]])
    args = [a if axis == 0 else a[0] for a, axis in zip((x, w, sizes), axes, strict=True)]

    def gradients(x, w, sizes):
        return jax.grad(lambda x, w: (ab.ragged_dot(x, w, sizes) ** 2).sum(), (0, 1))(x, w)

    mapped = jax.vmap(gradients, axes)(*args)
    for i in range(3):
        one = gradients(*(a[i] if axis == 0 else a for a, axis in zip(args, axes, strict=True)))
        for batch, single in zip(mapped, one, strict=True):
            np.testing.assert_array_equal(batch[i], single)


def test_second_derivatives_are_those_of_the_oracle():
    x, w, sizes = normal(0, (6, 3)), normal(1, (2, 3, 4)), jnp.array([2, 3])

    def norm(dot):
        def loss(x, w):
            return (dot(x, w, sizes) ** 3).sum()

        return lambda x, w: sum((g**2).sum() for g in jax.grad(loss, (0, 1))(x, w))

    ours = jax.grad(norm(ab.ragged_dot), (0, 1))(x, w)
    theirs = jax.grad(norm(reference.ragged_dot), (0, 1))(x, w)
    for a, b in zip(ours, theirs, strict=True):
        # Some 40 f32 operations deep; cancellation is bounded by the largest element.
        assert np.abs(a - b).max() <= 100 * 2.0**-24 * np.abs(b).max()


def test_shard_map_over_one_device_checks_varying_axes():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    x, w, dy, sizes = problem(F32, F32, F32)
    rows, whole = PartitionSpec("data"), PartitionSpec()
    body = jax.shard_map(ab.ragged_dot, mesh=mesh, in_specs=(rows, whole, rows), out_specs=rows)
    expected = jax.grad(lambda x, w: (ab.ragged_dot(x, w, sizes) * dy).sum(), (0, 1))(x, w)
    actual = jax.jit(jax.grad(lambda x, w: (body(x, w, sizes) * dy).sum(), (0, 1)))(x, w)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_shard_map_over_two_devices_sums_weight_gradients():
    program = """
        import jax, jax.numpy as jnp, numpy as np, anabranch as ab
        from jax.sharding import AxisType, PartitionSpec as P
        mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
        rng = np.random.default_rng(0)
        draw = lambda *s: jnp.asarray(rng.integers(-4, 5, s), jnp.float32)  # exact sums
        x, w, dy = draw(16, 8), draw(3, 8, 6), draw(16, 6)
        sizes = jnp.array([4, 0, 3, 1, 2, 5])
        def gradients(dot):
            body = jax.shard_map(dot, mesh=mesh, in_specs=(P("data"), P(), P("data")),
                                 out_specs=P("data"))
            return jax.jit(jax.grad(lambda x, w: (body(x, w, sizes) * dy).sum(), (0, 1)))(x, w)
        for ours, theirs in zip(gradients(ab.ragged_dot), gradients(jax.lax.ragged_dot)):
            np.testing.assert_array_equal(ours, theirs)
    """
    run_python(program, XLA_FLAGS="--xla_force_host_platform_device_count=2")


def run_python(program, **environment):
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment},
        check=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "sizes, message",
    [
        ([4, -5, 3], r"group_sizes\[1\]=-5 is negative; group sizes must be >= 0"),
        ([4, 4, 6], "group_sizes add up to 14 but there are 13 rows"),
        ([2**31 - 1, 2**31 - 1, 0], "group_sizes add up to 4294967294 but there are 13 rows"),
    ],
)
def test_bad_sizes_are_errors_and_the_next_call_is_right(sizes, message):
    x, w, good = normal(0, (13, 7)), normal(1, (3, 7, 5)), jnp.array([4, 0, 7])
    expected = np.asarray(ab.ragged_dot(x, w, good))
    for dot in (ab.ragged_dot, jax.jit(ab.ragged_dot)):
        # JAX's fast path for compiled functions raises ValueError, all others JaxRuntimeError.
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
            dot(x, w, jnp.array(sizes)).block_until_ready()
        np.testing.assert_array_equal(dot(x, w, good), expected)


def test_sizes_that_int32_cannot_hold_are_errors():
    with jax.enable_x64(True):
        x, w = normal(0, (13, 7)), normal(1, (2, 7, 5))
        for sizes in ([2**32, 0], [-(2**40), 13]):
            with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="group_sizes"):
                ab.ragged_dot(x, w, jnp.array(sizes, jnp.int64)).block_until_ready()


@pytest.mark.parametrize(
    "x, w, sizes",
    [
        ((4, 3), (2, 4, 5), (2,)),
        ((4, 3), (2, 3, 5), (3,)),
        ((4, 3), (3, 5), (2,)),
        ((4,), (2, 3, 5), (2,)),
        ((4, 3), (2, 3, 5), ()),
        ((4, 3), (2, 3, 5), (1, 2)),
    ],
)
def test_shapes_that_do_not_fit_are_printed(x, w, sizes):
    with pytest.raises(ValueError, match="ragged_dot: lhs float32") as error:
        ab.ragged_dot(jnp.ones(x), jnp.ones(w), jnp.ones(sizes, jnp.int32))
    for shape in (x, w, sizes):
        assert str([*shape]) in str(error.value)


def test_wrong_dtype_of_sizes_and_group_offset():
    x, w = jnp.ones((4, 3)), jnp.ones((2, 3, 5))
    with pytest.raises(ValueError, match="group_sizes float32"):
        ab.ragged_dot(x, w, jnp.ones(2))
    with pytest.raises(NotImplementedError, match="group_offset"):
        ab.ragged_dot(x, w, jnp.array([1, 2]), group_offset=0)


def test_memory_holds_no_copy_per_group():
    num_groups, rows, k, n = 64, 3072, 512, 256
    x, w = jnp.zeros((rows, k), BF16), jnp.zeros((num_groups, k, n), BF16)
    gs = jnp.full(num_groups, rows // num_groups, jnp.int32)
    gradient = jax.jit(jax.grad(lambda x, w: ab.ragged_dot(x, w, gs).sum(), (0, 1)))
    temporary = gradient.lower(x, w).compile().memory_analysis().temp_size_in_bytes
    # Beside operands and results, which are O(E K N + M (K + N)): the result and its cotangent.
    assert temporary <= 2 * 4 * rows * n
