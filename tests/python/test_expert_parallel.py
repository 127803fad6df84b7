# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab
from anabranch.ops.expert_parallel.calls import worst_capacity
from expert_parallel_cases import assert_same_bits, case, layer, mesh_of, sharded, with_gradients

SPEC = PartitionSpec("expert")


# NVIDIA/Megatron-LM issue 1603: a loss that differs between dispatchers.
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_layer_over_ranks_has_the_bits_of_one_device(ranks, dtype):
    ids, arrays, y_grad = case(dtype=dtype)
    expected = with_gradients(lambda x, *rest: layer(x, ids, *rest), y_grad)(*arrays)
    ep = ab.ExpertParallel(num_experts=8, topk=3)
    assert_same_bits(with_gradients(sharded(ranks, ids, ep), y_grad)(*arrays), expected)


# Megatron-LM 1877, 3626, 4851 and ROCm/Megatron-LM 155: a rank that receives nothing; sgl-kernel-npu 69:
# one that sends nothing; DeepEP 621: a single sender.
@pytest.mark.parametrize("kind", ["cold rank", "all nowhere", "one sender", "one expert"])
def test_empty_ranks(kind):
    rng = np.random.default_rng(3)
    ids = np.argsort(rng.random((16, 2)), 1)
    if kind == "all nowhere":
        ids[:] = -1
    elif kind == "one sender":
        ids[4:] = -1
    elif kind == "one expert":
        ids = np.stack([np.full(16, 7), np.full(16, -1)], 1)
    ids, arrays, y_grad = case(tokens=16, topk=2, ids=ids)
    expected = with_gradients(lambda x, *rest: layer(x, ids, *rest), y_grad)(*arrays)
    ep = ab.ExpertParallel(num_experts=8, topk=2)
    actual = with_gradients(sharded(4, ids, ep), y_grad)(*arrays)
    assert_same_bits(actual, expected)
    if kind == "cold rank":
        for gradient in actual[3:]:
            assert not np.asarray(gradient[2:], np.float32).any()


# Automodel 3641 and Megatron-Bridge 3294: T that is no multiple of 4 or 64; Megatron-LM 7578: a longer
# batch after a shorter one; nccl test_ht_stale_routing_map: a shorter one after a longer one.
def test_any_number_of_tokens():
    ep = ab.ExpertParallel(num_experts=8, topk=3)
    for tokens in (2, 34, 0, 6, 66, 10):
        ids, arrays, _ = case(tokens=tokens, seed=tokens)
        expected = jax.jit(lambda x, *rest, ids=ids: layer(x, ids, *rest))(*arrays)
        actual = jax.jit(sharded(2, ids, ep))(*arrays)
        assert_same_bits([actual], [expected])


# TensorRT-LLM 13888, vllm 21497: E that R does not divide, and E < R.
@pytest.mark.parametrize(("experts", "ranks"), [(9, 4), (3, 4), (1, 2), (5, 2)])
def test_uneven_tables(experts, ranks):
    ids, arrays, y_grad = case(tokens=16, experts=experts, topk=min(2, experts))
    ep = ab.ExpertParallel(num_experts=experts, topk=min(2, experts))
    local = ep.local_experts(ranks)
    owners = np.asarray(ep.owners(ranks))
    # Each rank's experts, filled up with experts that nobody routes to.
    places = [rank * local + int((owners[:e] == rank).sum()) for e, rank in enumerate(owners)]

    def spread(w):
        return (
            jnp.full((ranks * local, *w.shape[1:]), jnp.nan, w.dtype).at[jnp.array(places)].set(w)
        )

    expected = with_gradients(lambda x, *rest: layer(x, ids, *rest), y_grad)(*arrays)
    inputs = (*arrays[:2], *map(spread, arrays[2:]))
    actual = with_gradients(sharded(ranks, ids, ep), y_grad)(*inputs)
    fill = np.setdiff1d(np.arange(ranks * local), places)
    for gradient in actual[3:]:
        assert not np.asarray(gradient, np.float32)[fill].any()
    assert_same_bits([*actual[:3], *(g[jnp.array(places)] for g in actual[3:])], expected)


def test_rows_lie_in_order_of_expert_rank_token_with_zeroed_padding():
    ids, (x, weights, *_), _ = case(tokens=16)
    ep = ab.ExpertParallel(num_experts=8, topk=3, alignment=16)

    def body(x, ids, weights):
        plan = ep.prepare(ids)
        rows, row_weights = ep.dispatch(plan, x, weights)
        return rows[None], row_weights[None], *(part[None] for part in plan[1:5])

    mapped = jax.jit(
        jax.shard_map(body, mesh=mesh_of(2), in_specs=(SPEC,) * 3, out_specs=(SPEC,) * 6)
    )
    rows, row_weights, sizes, offsets, needed, dropped = map(np.asarray, mapped(x, ids, weights))
    assert not dropped.any()
    assert (needed == offsets[:, -1].max()).all()
    for expert in range(8):
        rank, local = divmod(expert, 4)
        tokens, slots = np.nonzero(np.asarray(ids) == expert)
        first, last = offsets[rank, local : local + 2]
        end = first + len(tokens)
        assert sizes[rank, local] == len(tokens)
        np.testing.assert_array_equal(rows[rank, first:end], np.asarray(x)[tokens])
        np.testing.assert_array_equal(
            row_weights[rank, first:end], np.asarray(weights)[tokens, slots]
        )
        assert not rows[rank, end:last].astype(np.float32).any()
        assert not row_weights[rank, end:last].any()


# marin issue 8077: the largest error of each gradient, against a dense reference under jax.grad.
def test_dispatch_and_combine_against_a_dense_reference():
    ids, (x, weights, *_), _ = case(tokens=16, dtype=jnp.float32)
    rng = np.random.default_rng(5)
    scale = jnp.asarray(rng.integers(1, 4, (8, 1)), jnp.float32)
    out_grad = jnp.asarray(rng.integers(-3, 4, x.shape), jnp.float32)
    x, weights = jnp.round(4 * x), jnp.round(4 * weights)  # integers: every sum is exact
    ep = ab.ExpertParallel(num_experts=8, topk=3)

    def body(x, ids, weights, scale):
        plan = ep.prepare(ids)
        rows, row_weights = ep.dispatch(plan, x, weights)
        expert = jnp.searchsorted(plan.group_offsets[1:], jnp.arange(rows.shape[0]), side="right")
        used = jnp.arange(rows.shape[0]) < plan.group_offsets[-1]
        # Masked first and last: rows that are not used are undefined, and so are their gradients.
        factor = jnp.where(used, row_weights, 0) * scale[expert % 4, 0]
        weighed = factor[:, None] * jnp.where(used[:, None], rows, 0)
        return ep.combine(plan, jnp.where(used[:, None], weighed, 0))

    mapped = jax.shard_map(body, mesh=mesh_of(2), in_specs=(SPEC,) * 4, out_specs=SPEC)

    def dense(x, weights, scale):
        factor = jnp.where(ids < 0, 0, weights * scale[ids, 0])
        return factor.sum(1, keepdims=True) * x

    run = lambda f: jax.jit(lambda *a: (lambda y, p: (y, *p(out_grad)))(*jax.vjp(f, *a)))  # noqa: E731
    actual = run(lambda x, weights, scale: mapped(x, ids, weights, scale))(x, weights, scale)
    expected = run(dense)(x, weights, scale)
    for have, want in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(have, want)


def test_under_remat_scan_and_a_mesh_of_two_axes():
    ids, arrays, y_grad = case(tokens=16)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "expert"))
    ep = ab.ExpertParallel(num_experts=8, topk=3)

    def twice(run):
        def body(x, *rest):
            step = jax.checkpoint(lambda x, _: (run(x, *rest), None))
            return jax.lax.scan(step, x, None, length=2)[0]

        return body

    both = PartitionSpec(("data", "expert"))
    specs = (both, both, both, SPEC, SPEC, SPEC)
    mapped = jax.shard_map(
        twice(functools.partial(layer, ep=ep)), mesh=mesh, in_specs=specs, out_specs=both
    )
    expected = with_gradients(lambda x, *rest: twice(layer)(x, ids, *rest), y_grad)(*arrays)
    actual = with_gradients(lambda x, *rest: mapped(x, ids, *rest), y_grad)(*arrays)
    assert_same_bits(actual[:3], expected[:3])
    for have, want in zip(actual[3:], expected[3:], strict=True):
        # Two data ranks: two f32 sums in place of one, rounded to bf16 before they are added.
        wide = np.asarray(want, np.float32)
        error = np.abs(np.asarray(have, np.float32) - wide)
        assert error.max() <= 4 * 2.0**-8 * np.abs(wide).max()


# DeepEP 580, 166, 513; ROCm/mori 80; DeepEP 93: two plans alive, dispatches and combines interleaved.
def test_many_live_plans_and_equal_calls():
    ids, (x, weights, *_), _ = case(tokens=16, dtype=jnp.float32)
    x = jnp.round(4 * x)
    ep = ab.ExpertParallel(num_experts=8, topk=3)

    def body(x, ids):
        plans = [ep.prepare(jnp.where(ids < 0, -1, (ids + shift) % 8)) for shift in range(3)]
        rows = [ep.dispatch(plan, x) for plan in plans for _ in range(2)]
        plans = [plan for plan in plans for _ in range(2)]
        return sum(ep.combine(p, r) for p, r in reversed(list(zip(plans, rows, strict=True))))

    mapped = jax.jit(jax.shard_map(body, mesh=mesh_of(4), in_specs=(SPEC, SPEC), out_specs=SPEC))
    expected = 6 * (np.asarray(ids) >= 0).sum(1, keepdims=True) * np.asarray(x)
    for _ in range(5):
        np.testing.assert_array_equal(mapped(x, ids), expected)


# torchtitan 2207, mori 356: a capacity that does not suffice.
def test_overflow_is_an_error_grows_or_drops():
    ids, arrays, _ = case(tokens=16, ids=np.tile([[0, 1]], (16, 1)), topk=2)
    expected = jax.jit(lambda x, *rest: layer(x, ids, *rest))(*arrays)
    exact = ab.ExpertParallel(num_experts=8, topk=2, capacity=32)
    assert_same_bits([jax.jit(sharded(2, ids, exact))(*arrays)], [expected])
    small = ab.ExpertParallel(num_experts=8, topk=2, capacity=31)
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match="rank 0 needs 32 rows but capacity=31"
    ):
        jax.block_until_ready(jax.jit(sharded(2, ids, small))(*arrays))
    grows = ab.ExpertParallel(num_experts=8, topk=2, capacity=5, overflow="grow")
    assert_same_bits([jax.jit(sharded(2, ids, grows))(*arrays)], [expected])
    drops = ab.ExpertParallel(num_experts=8, topk=2, capacity=20, overflow="drop")

    def count(ids):
        return drops.prepare(ids).dropped[None]

    dropped = jax.shard_map(count, mesh=mesh_of(2), in_specs=SPEC, out_specs=SPEC)
    assert jax.jit(dropped)(ids).sum() == 12
    # Expert 0 keeps its 16 rows, expert 1 the first 4 of its own.
    kept = jnp.where((jnp.arange(16) < 4)[:, None], ids, jnp.array([0, -1]))
    expected = jax.jit(lambda x, *rest: layer(x, kept, *rest))(*arrays)
    assert_same_bits([jax.jit(sharded(2, ids, drops))(*arrays)], [expected])


# vllm 48740: a duplicate expert is rejected, and the message says where, on which rank.
@pytest.mark.parametrize(("slot", "message"), [(2, "duplicate"), (8, "out of range")])
def test_bad_experts_are_named(slot, message):
    ids = np.tile([[1, 2]], (8, 1))
    ids[6, 0] = slot
    ids, arrays, _ = case(tokens=8, topk=2, ids=ids)
    ep = ab.ExpertParallel(num_experts=8, topk=2)
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=rf"rank 1: .*token=2.*{message}"
    ):
        jax.block_until_ready(jax.jit(sharded(2, ids, ep))(*arrays))


# nccl 2252 and 2123: the engine uses the same closed form (its test tries every routing).
def test_worst_capacity():
    assert worst_capacity(100, 8, 4, 1) == 400
    assert worst_capacity(100, 2, 4, 16) == 16 * (4 + (200 - 4) // 16)
    assert worst_capacity(0, 2, 4, 16) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topk": 9}, "topk=9"),
        ({"capacity": -1}, "capacity=-1"),
        ({"overflow": "ignore"}, "overflow='ignore'"),
        ({"waves": 0}, "waves=0"),
        ({"chunks": 0}, "chunks=0"),
        ({"combine": "three_level"}, "combine_mode='three_level'"),
        ({"wire": "mxfp4"}, "wire='mxfp4'; must be one of bf16, mxfp8"),
        ({"transport": "tcp"}, "transport='tcp'"),
        ({"rank_of_expert": (0,)}, "rank_of_expert"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        ab.ExpertParallel(**{"num_experts": 8, "topk": 2, **options})
