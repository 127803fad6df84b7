# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Rows that travel as MXFP8: the bits of rounding each token's row, and of a bf16 wire after that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import anabranch as ab
import training
from anabranch.train import ranks
from expert_parallel_cases import assert_same_bits, case, layer, mesh_of, sharded, with_gradients
from test_ranks import after_steps
from training import assert_equal_trees, tiny

text = training.text
SPEC = PartitionSpec("expert")
HIDDEN = 70  # two whole blocks and a short one


def rounded(x):
    return ab.quantize(x, "mxfp8_e4m3").dequantize(x.dtype)


@jax.custom_vjp
def sent(x):
    """What arrives of x; its gradient is as it is."""
    return rounded(x)


@jax.custom_vjp
def fetched(y):
    """y as it is; its gradient is sent."""
    return y


sent.defvjp(lambda x: (rounded(x), None), lambda _, gradient: (gradient,))
fetched.defvjp(lambda y: (y, None), lambda _, gradient: (rounded(gradient),))


def expected_layer(x, ids, *rest):
    return fetched(layer(sent(x), ids, *rest))


@pytest.mark.parametrize("options", [{}, {"waves": 2}, {"alignment": 16}], ids=str)
@pytest.mark.parametrize(("count", "dtype"), [(1, "bfloat16"), (2, "bfloat16"), (4, "float32")])
def test_a_layer_has_the_bits_of_rounded_rows_on_one_device(count, dtype, options):
    ids, arrays, y_grad = case(hidden=HIDDEN, dtype=jnp.dtype(dtype))
    oracle = with_gradients(lambda x, *rest: expected_layer(x, ids, *rest), y_grad)(*arrays)
    plain = with_gradients(lambda x, *rest: layer(x, ids, *rest), y_grad)(*arrays)
    assert not np.array_equal(oracle[0], plain[0])
    ep = ab.ExpertParallel(num_experts=8, topk=3, wire="mxfp8", **options)
    assert_same_bits(with_gradients(sharded(count, ids, ep), y_grad)(*arrays), oracle)


def test_a_layer_in_chunks_has_them_too():
    ids, arrays, y_grad = case(hidden=HIDDEN)
    oracle = with_gradients(lambda x, *rest: expected_layer(x, ids, *rest), y_grad)(*arrays)
    ep = ab.ExpertParallel(num_experts=8, topk=3, wire="mxfp8", chunks=3)
    actual = with_gradients(sharded(2, ids, ep), y_grad)(*arrays)
    assert_same_bits(actual[:3], oracle[:3])  # weight gradients are sums over the chunks


def test_dispatched_rows_are_what_quantize_gives_and_combine_sends_rows_as_they_are():
    ids, (x, *_), _ = case(tokens=16, hidden=HIDDEN, topk=1)
    ids = jnp.abs(ids)
    ep = ab.ExpertParallel(num_experts=8, topk=1, wire="mxfp8")

    def body(x, ids):
        plan = ep.prepare(ids)
        rows = ep.dispatch(plan, x)
        thirds = jnp.full_like(rows, 1 / 3)  # no number of E4M3
        return ep.combine(plan, rows), ep.combine(plan, thirds)

    run = jax.shard_map(body, mesh=mesh_of(2), in_specs=(SPEC, SPEC), out_specs=(SPEC, SPEC))
    back, thirds = jax.jit(run)(x, ids)
    np.testing.assert_array_equal(back, rounded(x))
    np.testing.assert_array_equal(thirds, np.full_like(thirds, 1 / 3))


def test_a_row_is_encoded_once_however_far_it_goes():
    ids, arrays, y_grad = case(hidden=HIDDEN)
    ep = ab.ExpertParallel(num_experts=8, topk=3, wire="mxfp8", waves=4)
    program = with_gradients(sharded(2, ids, ep), y_grad).lower(*arrays).as_text()
    assert program.count("@anabranch_encode_rows(") == 2  # the tokens', and the gradients'
    assert program.count("@anabranch_expert_parallel_decode(") == 2 * 4


def test_under_the_mxfp8_recipe_the_wire_rounds_what_is_rounded_anyway():
    ids, arrays, _ = case(tokens=16, hidden=64)
    outputs = []
    for wire in ("bf16", "mxfp8"):
        ep = ab.ExpertParallel(num_experts=8, topk=3, wire=wire)

        def low(x, ids, weights, *experts, ep):
            routing = ab.Routing(ids, weights, None)
            return ab.moe_ffn(x, routing, *experts, recipe="mxfp8", expert_parallel=ep)

        outputs.append(jax.jit(sharded(2, ids, ep, low))(*arrays))
    np.testing.assert_array_equal(*outputs)


def test_training_has_the_bits_of_one_device(text):
    small = ("model.num_layers=1", "model.num_dense_layers=0")
    recipe = tiny(text, *small, "parallel.wire=mxfp8", "parallel.waves=2")
    assert ranks.Ranks(recipe).expert_parallel.wire == "mxfp8"  # on one rank, too
    one = after_steps(recipe, 1)
    assert one[1].applied
    assert_equal_trees(after_steps(recipe, 4), one)
