# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Chunks and waves: how much travels at a time changes no result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import anabranch as ab
from anabranch.ops.expert_parallel import parts
from expert_parallel_cases import assert_same_bits, case, layer, mesh_of, sharded, with_gradients

SPEC = PartitionSpec("expert")


def routings(tokens=32, experts=8, topk=2):
    rng = np.random.default_rng(4)
    spread = np.argsort(rng.random((tokens, experts)), 1)[:, :topk]
    half = spread.copy()
    half[tokens // 2 :] = np.arange(topk)  # the second rank's tokens all go to the first rank
    return {
        "spread": spread,
        "one rank gets all": np.tile(np.arange(topk), (tokens, 1)),
        "half": half,
        "nowhere": np.full((tokens, topk), -1),
        "some nowhere": np.where(rng.random(spread.shape) < 0.5, -1, spread),
    }


def both_ways(function):
    def run(ids, y_grad, x, *rest):
        y, pullback = jax.vjp(lambda x, *rest: function(x, ids, *rest), x, *rest)
        return y, *pullback(y_grad)

    return jax.jit(run)


def over(ranks, ep):
    body = functools.partial(layer, ep=ep)
    specs = (SPEC,) * 6
    return both_ways(jax.shard_map(body, mesh=mesh_of(ranks), in_specs=specs, out_specs=SPEC))


# Memory for a quarter of the worst case, and every token is served whatever the skew.
@pytest.mark.parametrize("alignment", [1, 16])
def test_chunks_serve_every_token(alignment):
    ep = ab.ExpertParallel(num_experts=8, topk=2, chunks=4, alignment=alignment)
    whole, split = both_ways(layer), over(2, ep)
    for ids in routings().values():
        ids, arrays, y_grad = case(tokens=32, topk=2, ids=ids, dtype=jnp.float32)
        expected, actual = whole(ids, y_grad, *arrays), split(ids, y_grad, *arrays)
        assert_same_bits(actual[:3], expected[:3])
        for have, want in zip(actual[3:], expected[3:], strict=True):
            # At most four f32 sums of at most 32 rows in place of one.
            bound = 36 * 2.0**-24 * 32 * np.abs(np.asarray(want)).max()
            np.testing.assert_allclose(have, want, rtol=0, atol=bound)


def test_chunks_of_bf16_weights_are_summed_in_f32():
    ids, arrays, y_grad = case(tokens=32, topk=2, ids=routings()["one rank gets all"])
    wide = tuple(w.astype(jnp.float32) for w in arrays[2:])
    ep = ab.ExpertParallel(num_experts=8, topk=2, chunks=8)
    whole = with_gradients(lambda x, *rest: layer(x, ids, *rest), y_grad)(*arrays[:2], *wide)
    actual = with_gradients(sharded(2, ids, ep), y_grad)(*arrays)
    for have, want in zip(actual[3:], whole[3:], strict=True):
        assert have.dtype == jnp.bfloat16
        # One rounding to bf16, of a sum that differs by f32 rounding.
        scale = float(jnp.abs(want).max())
        error = np.abs(np.asarray(have, np.float32) - np.asarray(want))
        assert error.max() <= 2.0**-9 * scale + 40 * 2.0**-24 * 32 * scale


# Few chunks where few suffice: the same capacity takes spread tokens at once and skewed ones in four parts.
def test_there_are_as_few_parts_as_the_capacity_allows():
    ep = ab.ExpertParallel(num_experts=8, topk=2, chunks=4, capacity=40)

    def count(ids):
        group = parts.group_of_chunk(ep, ids.shape[0])
        return parts.cut(ep, group, ids)[1][None]

    run = jax.jit(jax.shard_map(count, mesh=mesh_of(2), in_specs=SPEC, out_specs=SPEC))
    counts = {
        kind: np.asarray(run(jnp.asarray(ids, jnp.int32))) for kind, ids in routings().items()
    }
    for found in counts.values():
        assert found[0] == found[1]
    assert counts["spread"][0] == counts["nowhere"][0] == 1
    assert counts["one rank gets all"][0] == 2  # 64 rows, 16 to a chunk


def test_chunks_under_scan_remat_and_a_second_axis():
    ids, arrays, y_grad = case(tokens=32, topk=2, ids=routings()["half"], dtype=jnp.float32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "expert"))
    ep = ab.ExpertParallel(num_experts=8, topk=2, chunks=4)

    def twice(ep):
        def body(x, ids, *rest):
            step = jax.checkpoint(lambda x, _: (layer(x, ids, *rest, ep=ep), None))
            return jax.lax.scan(step, x, None, length=2)[0]

        return body

    both = PartitionSpec(("data", "expert"))
    mapped = jax.shard_map(
        twice(ep), mesh=mesh, in_specs=(both, both, both, SPEC, SPEC, SPEC), out_specs=both
    )
    actual = with_gradients(lambda x, *rest: mapped(x, ids, *rest), y_grad)(*arrays)
    expected = with_gradients(lambda x, *rest: twice(None)(x, ids, *rest), y_grad)(*arrays)
    assert_same_bits(actual[:3], expected[:3])
    for have, want in zip(actual[3:], expected[3:], strict=True):
        scale = float(np.abs(np.asarray(want)).max())
        np.testing.assert_allclose(have, want, rtol=0, atol=80 * 2.0**-24 * 32 * scale)


def test_a_capacity_that_no_chunk_fits_is_an_error_with_the_number_of_chunks():
    ids, arrays, _ = case(tokens=32, topk=2, ids=routings()["spread"])
    ep = ab.ExpertParallel(num_experts=8, topk=2, chunks=2, capacity=20)
    with pytest.raises(ValueError, match="can need 32; chunks=2 must be at least 4"):
        jax.jit(sharded(2, ids, ep))(*arrays)
    assert parts.chunks_for(ep, 20, 16, 2) == 4
    with pytest.raises(ValueError, match="capacity=3; must be at least 4"):
        parts.chunks_for(ep, 3, 16, 2)


# flashinfer issue 4531: a wave that is empty, on one rank or on all, must not be waited for. Four experts a
# rank: of eight waves half have no experts at all.
@pytest.mark.parametrize(("ranks", "waves"), [(2, 2), (2, 8), (4, 4)])
def test_waves_have_the_bits_of_one_device(ranks, waves):
    whole = both_ways(layer)
    in_waves = over(ranks, ab.ExpertParallel(num_experts=8, topk=2, waves=waves, alignment=4))
    for ids in routings().values():
        ids, arrays, y_grad = case(tokens=32, topk=2, ids=ids)
        expected, actual = whole(ids, y_grad, *arrays), in_waves(ids, y_grad, *arrays)
        assert_same_bits(actual, expected)


def test_waves_and_chunks_together():
    whole = both_ways(layer)
    run = over(2, ab.ExpertParallel(num_experts=8, topk=2, waves=2, chunks=4))
    ids, arrays, y_grad = case(tokens=32, topk=2, ids=routings()["half"], dtype=jnp.float32)
    expected, actual = whole(ids, y_grad, *arrays), run(ids, y_grad, *arrays)
    assert_same_bits(actual[:3], expected[:3])


def test_waves_of_an_uneven_table_and_a_capacity():
    ids = np.tile([[0, 4]], (16, 1))
    ids, arrays, _ = case(tokens=16, experts=5, topk=2, ids=ids)
    arrays = (*arrays[:2], *(jnp.concatenate([w, w[:1]]) for w in arrays[2:]))  # rank 1 has a spare
    expected = jax.jit(lambda x, *rest: layer(x, ids, *rest))(*arrays)
    ep = ab.ExpertParallel(num_experts=5, topk=2, waves=3, capacity=16)
    assert_same_bits([jax.jit(sharded(2, ids, ep))(*arrays)], [expected])


# The domain of all ranks adds up what the exact sum adds up; domains of one rank round what they send.
def test_two_level_sums():
    ids, (x, weights, *_), _ = case(tokens=32, topk=3)

    def added_up(**options):
        ep = ab.ExpertParallel(num_experts=8, topk=3, **options)

        def body(x, ids):
            plan = ep.prepare(ids)
            return ep.combine(plan, ep.dispatch(plan, x))

        mapped = jax.shard_map(body, mesh=mesh_of(4), in_specs=(SPEC, SPEC), out_specs=SPEC)
        return np.asarray(jax.jit(mapped)(x, ids), np.float32)

    exact = added_up()
    np.testing.assert_array_equal(added_up(combine="two_level", domain_size=4), exact)
    # At most three partial sums of at most three rows, each rounded to bf16.
    bound = 2.0**-9 * 3 * np.abs(np.asarray(x, np.float32)) * 3
    assert (np.abs(added_up(combine="two_level") - exact) <= bound + 2.0**-8 * np.abs(exact)).all()


def test_chunks_and_low_precision_exclude_each_other():
    ids, arrays, _ = case(tokens=32, topk=2, ids=routings()["spread"])
    ep = ab.ExpertParallel(num_experts=8, topk=2, chunks=2)

    def body(x, ids, weights, *experts, ep):
        routing = ab.Routing(ids, weights, None)
        return ab.moe_ffn(x, routing, *experts, expert_parallel=ep, recipe="mxfp8")

    with pytest.raises(ValueError, match="chunks=2 goes with the plain arithmetic alone"):
        jax.jit(sharded(2, ids, ep, body))(*arrays)
