# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab
from anabranch.ops import use_in_jax as module

SPEC = PartitionSpec("x")
ROWS, HIDDEN = 12, 3


def tables(ranks, seed, empty=None):
    """Sizes and offsets of random pieces, [ranks, ranks] each; pieces of one rank do not overlap."""
    rng = np.random.default_rng(seed)
    send = rng.integers(0, ROWS // ranks + 1, (ranks, ranks))
    if empty is not None:
        send[empty] = 0
    inputs = np.cumsum(send, 1) - send
    outputs = np.cumsum(send, 0) - send
    return [jnp.asarray(t, jnp.int32) for t in (inputs, send, outputs, send.T)]


def arrays(ranks, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda: jnp.asarray(rng.integers(-9, 10, (ranks, ROWS, HIDDEN)), dtype)  # noqa: E731
    return draw(), draw(), draw()


def dense(operand, output, inputs, send, outputs, recv):
    """The same by indexing, on one device: operand, output [ranks, ROWS, HIDDEN]."""
    ranks = operand.shape[0]
    for source in range(ranks):
        for target in range(ranks):
            count, at = int(send[source, target]), int(inputs[source, target])
            to = int(outputs[source, target])
            output = output.at[target, to : to + count].set(operand[source, at : at + count])
    return output


def over_ranks(ranks, function):
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("x",))

    def body(operand, output, *vectors):
        vectors = [vector[0] for vector in vectors]
        return function(operand[0], output[0], *vectors, axis_name="x")[None]

    return jax.shard_map(body, mesh=mesh, in_specs=(SPEC,) * 6, out_specs=SPEC)


@pytest.mark.parametrize("use", ["ab", "jax"])
@pytest.mark.parametrize(("ranks", "dtype"), [(1, "float32"), (2, "bfloat16"), (4, "float32")])
def test_equals_a_dense_reference_and_so_do_gradients(use, ranks, dtype):
    operand, output, gradient = arrays(ranks, dtype)
    vectors = tables(ranks, ranks, empty=0 if ranks == 4 else None)

    def run(function):
        def step(operand, output):
            y, pullback = jax.vjp(lambda a, b: function(a, b, *vectors), operand, output)
            return y, *pullback(gradient)

        return step(operand, output)

    expected = run(dense)
    with ab.use_in_jax():
        function = ab.ragged_all_to_all if use == "ab" else jax.lax.ragged_all_to_all
        mapped = jax.jit(over_ranks(ranks, function))
        actual = run(mapped)
    # JAX marks the rows that were written by a sum that empty pieces disturb: the gradient of
    # `output` under JAX's own rule is not ours to answer for.
    for have, want in list(zip(actual, expected, strict=True))[: 3 if use == "ab" else 2]:
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(have, np.float32), np.asarray(want, np.float32))


@pytest.mark.parametrize("dtype", ["int32", "int8", "float16", "bool", "complex64"])
def test_any_dtype_moves(dtype):
    operand, output, _ = arrays(2)
    operand, output = operand.astype(dtype), output.astype(dtype)
    vectors = tables(2, 3)
    actual = jax.jit(over_ranks(2, ab.ragged_all_to_all))(operand, output, *vectors)
    np.testing.assert_array_equal(actual, dense(operand, output, *vectors))


def test_a_row_sent_to_everybody_gets_the_sum_of_its_gradients():
    operand, output, gradient = arrays(4)
    send = jnp.full((4, 4), 2, jnp.int32)
    inputs = jnp.full((4, 4), 5, jnp.int32)
    outputs = jnp.tile(2 * jnp.arange(4, dtype=jnp.int32)[:, None], (1, 4))
    mapped = jax.jit(over_ranks(4, ab.ragged_all_to_all))
    _, pullback = jax.vjp(lambda a, b: mapped(a, b, inputs, send, outputs, send), operand, output)
    d_operand, d_output = pullback(gradient)
    expected = np.zeros_like(operand)
    for source in range(4):
        expected[source, 5:7] = np.asarray(gradient)[:, 2 * source : 2 * source + 2].sum(0)
    np.testing.assert_array_equal(d_operand, expected)
    np.testing.assert_array_equal(d_output[:, :8], 0)
    np.testing.assert_array_equal(d_output[:, 8:], gradient[:, 8:])


def test_under_jit_scan_and_two_axes():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("d", "x"))
    operand, output, _ = arrays(4)
    vectors = [jnp.concatenate(pair) for pair in zip(tables(2, 1), tables(2, 2), strict=True)]

    def body(operand, output, *vectors, function):
        vectors = [vector[0] for vector in vectors]

        def step(carry, _):
            return function(operand[0], carry, *vectors, axis_name="x"), None

        return jax.lax.scan(step, output[0], None, length=3)[0][None]

    both = PartitionSpec(("d", "x"))
    expected = jnp.concatenate(
        [
            dense(operand[half], output[half], *(vector[half] for vector in vectors))
            for half in (slice(0, 2), slice(2, 4))
        ]
    )
    with ab.use_in_jax():
        for function in (ab.ragged_all_to_all, jax.lax.ragged_all_to_all):
            one = functools.partial(body, function=function)
            mapped = jax.shard_map(one, mesh=mesh, in_specs=(both,) * 6, out_specs=both)
            np.testing.assert_array_equal(jax.jit(mapped)(operand, output, *vectors), expected)


def test_faults_are_named():
    operand, output, _ = arrays(2)
    vectors = tables(2, 1)
    bad = [
        vectors[0],
        vectors[1].at[1, 0].set(ROWS + 1),
        vectors[2],
        vectors[3].at[0, 1].set(ROWS + 1),
    ]
    run = jax.jit(over_ranks(2, ab.ragged_all_to_all))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="rank 1: piece 0 to rank 0"):
        jax.block_until_ready(run(operand, output, *bad))
    with pytest.raises(ValueError, match=r"float32\[12, 3\].*float32\[12, 2\]"):
        run(operand, output[:, :, :2], *vectors)
    with pytest.raises(ValueError, match="multiple of the axis size 2"):
        run(operand, output, *(vector[:, :1] for vector in vectors))


# A version of JAX that moves these names must fail here, not at a user's.
def test_the_private_names_exist_and_fit():
    primitive, by_jax, replica_groups, (_, hlo), mlir = module.exchange_names()
    assert primitive.name == "ragged_all_to_all"
    assert {"axis_name", "axis_index_groups"} <= set(inspect.signature(by_jax).parameters)
    assert len(inspect.signature(replica_groups).parameters) == 3
    assert {"partition_id", "convert"} <= set(dir(hlo))
    assert {"register_lowering", "lower_fun"} <= set(dir(mlir))


def test_without_use_in_jax_the_primitive_is_jax_own():
    operand, output, _ = arrays(2)
    run = jax.jit(over_ranks(2, jax.lax.ragged_all_to_all))
    with pytest.raises(Exception, match="(?i)ragged.all.to.all"):
        jax.block_until_ready(run(operand, output, *tables(2, 1)))
