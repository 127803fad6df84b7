# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""ragged_plan against numpy's stable sort, under JAX's transformations, and its errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab
from anabranch.ops import reference

# A fault that the engine finds while JAX is still dispatching the call surfaces as ValueError, a
# later one as JaxRuntimeError; the message is the same.
ENGINE_ERRORS = (jax.errors.JaxRuntimeError, ValueError)


def check(ids: np.ndarray, num_experts: int, plan: ab.RaggedPlan) -> None:
    """Every promise of the plan, from the ids alone."""
    tokens, topk = ids.shape
    rows = plan.row_token.shape[0]
    assert all(x.dtype == jnp.int32 for x in plan)
    sizes, offsets, row_token, slot_row = map(np.asarray, plan)
    flat = ids.reshape(-1)
    routed = np.flatnonzero(flat >= 0)
    np.testing.assert_array_equal(sizes, np.bincount(flat[routed], minlength=num_experts))
    np.testing.assert_array_equal(offsets, np.concatenate([[0], np.cumsum(sizes)]))
    order = routed[np.argsort(flat[routed], kind="stable")]  # slots in row order
    used = len(order)
    np.testing.assert_array_equal(row_token[:used], order // max(topk, 1))
    np.testing.assert_array_equal(row_token[used:], np.full(rows - used, -1))
    expected = np.full(tokens * topk, -1)
    expected[order] = np.arange(used)
    np.testing.assert_array_equal(slot_row, expected.reshape(tokens, topk))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), shape=st.sampled_from([(1, 1), (7, 3), (64, 8), (1000, 2)]))
def test_is_a_stable_partition(seed: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    num_experts = int(rng.choice([1, 2, 9, 64]))
    ids = rng.integers(-1, num_experts, shape).astype(np.int32)
    check(ids, num_experts, ab.ragged_plan(ids, num_experts))


@pytest.mark.parametrize(
    ("ids", "num_experts"),
    [
        (np.zeros((0, 2)), 3),  # no tokens
        (np.full((50, 4), -1), 3),  # nothing routed
        (np.full((40_000, 2), 1), 2),  # all to one expert
        (np.arange(60_000).reshape(-1, 3)[::-1] % 129, 129),
        (np.arange(12).reshape(12, 1) % 3, 5),  # experts without rows
        (np.array([[1, 1], [0, 1]]), 2),  # one expert twice in a token
    ],
)
def test_edges(ids: np.ndarray, num_experts: int) -> None:
    ids = ids.astype(np.int32)
    check(ids, num_experts, ab.ragged_plan(ids, num_experts))
    check(ids, num_experts, jax.jit(ab.ragged_plan, static_argnums=1)(ids, num_experts))
    check(ids, num_experts, ab.ragged_plan(ids, num_experts, num_rows=ids.size + 7))


def test_permuting_experts_permutes_groups() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 16, (100, 4)).astype(np.int32)
    permutation = rng.permutation(16).astype(np.int32)
    before = ab.ragged_plan(ids, 16)
    after = ab.ragged_plan(permutation[ids], 16)
    np.testing.assert_array_equal(np.asarray(after.group_sizes)[permutation], before.group_sizes)
    for expert in range(16):
        old, new = int(before.group_offsets[expert]), int(after.group_offsets[permutation[expert]])
        size = int(before.group_sizes[expert])
        np.testing.assert_array_equal(
            before.row_token[old : old + size], after.row_token[new : new + size]
        )


def test_oracle_agrees() -> None:
    ids = np.random.default_rng(1).integers(-1, 8, (33, 5)).astype(np.int32)
    for num_rows in (None, 165, 170):
        expected = reference.ragged_plan(ids, 8, num_rows=num_rows)
        jax.tree.map(
            np.testing.assert_array_equal, ab.ragged_plan(ids, 8, num_rows=num_rows), expected
        )


def test_b2_padding_tokens_have_no_rows() -> None:
    ids = jnp.array([[0, 1], [1, 2], [2, 0], [0, 3], [0, 1], [0, 1], [0, 1], [0, 1]])
    plan = ab.ragged_plan(ids.at[4:].set(-1), 4)
    assert int(plan.group_sizes.sum()) == 8
    np.testing.assert_array_equal(plan.row_token[8:], np.full(8, -1))
    np.testing.assert_array_equal(plan.slot_row[4:], np.full((4, 2), -1))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint32])
def test_other_integer_types(dtype: Any) -> None:
    ids = np.random.default_rng(2).integers(0, 5, (9, 2)).astype(dtype)
    check(ids.astype(np.int32), 5, ab.ragged_plan(ids, 5))


def test_works_under_scan_vmap_shard_map_and_grad() -> None:
    ids = np.random.default_rng(3).integers(-1, 6, (4, 10, 3)).astype(np.int32)
    expected = [ab.ragged_plan(x, 6) for x in ids]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *expected)

    def plan(x: jax.Array) -> ab.RaggedPlan:
        return ab.ragged_plan(x, 6)

    scanned = jax.jit(lambda x: jax.lax.scan(lambda c, a: (c, plan(a)), 0, x)[1])(ids)
    jax.tree.map(np.testing.assert_array_equal, scanned, expected)
    jax.tree.map(np.testing.assert_array_equal, jax.vmap(plan)(ids), expected)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    spec = PartitionSpec("data")
    mapped = jax.shard_map(
        lambda x: jax.tree.map(lambda leaf: leaf[None], plan(x[0])),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
    )
    jax.tree.map(np.testing.assert_array_equal, jax.jit(mapped)(ids), expected)

    # Ids that come out of a differentiated computation; under remat, too.
    def value(x: jax.Array) -> jax.Array:
        routing = ab.topk_router(x, 2)
        sizes = ab.ragged_plan(routing.experts, 5).group_sizes
        return (routing.scores.sum(0) * sizes).sum()

    x = jax.random.normal(jax.random.key(0), (7, 5))
    gradient = jax.jit(jax.grad(jax.checkpoint(value)))(x)
    np.testing.assert_array_equal(jax.grad(value)(x) != 0, np.ones((7, 5), bool))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("bad", [-2, 5, 2**31 - 1, -(2**31)])
def test_id_out_of_range_is_named_and_the_next_call_is_right(bad: int) -> None:
    ids = np.zeros((7, 3), np.int32)
    ids[4, 1] = bad
    for function in (ab.ragged_plan, jax.jit(ab.ragged_plan, static_argnums=1)):
        with pytest.raises(ENGINE_ERRORS) as error:
            jax.block_until_ready(function(ids, 5))
        for part in ("ragged_plan", f"experts[token=4, slot=1]={bad}", "[0, 5)"):
            assert part in str(error.value)
        check(ids * 0, 5, function(ids * 0, 5))


def test_int64_ids_do_not_wrap_into_range() -> None:
    with pytest.raises(ENGINE_ERRORS, match="out of range"):
        jax.block_until_ready(ab.ragged_plan(np.array([[2**32 + 1]]), 4))


def test_too_few_rows_is_an_error_with_both_numbers() -> None:
    ids = np.random.default_rng(4).integers(0, 6, (30, 2)).astype(np.int32)
    ids[:5] = -1
    check(ids, 6, ab.ragged_plan(ids, 6, num_rows=50))
    with pytest.raises(ENGINE_ERRORS, match=r"50 slots .* num_rows=49"):
        jax.block_until_ready(ab.ragged_plan(ids, 6, num_rows=49))
    check(ids, 6, ab.ragged_plan(ids, 6))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"integer \[T, k\], got int32\[4\]"):
        ab.ragged_plan(jnp.zeros(4, jnp.int32), 2)
    with pytest.raises(ValueError, match=r"float32\[4, 2\]"):
        ab.ragged_plan(jnp.zeros((4, 2)), 2)
    with pytest.raises(ValueError, match="num_experts must be >= 1, got 0"):
        ab.ragged_plan(jnp.zeros((4, 2), jnp.int32), 0)
    with pytest.raises(ValueError, match=r"num_rows=-1"):
        ab.ragged_plan(jnp.zeros((4, 2), jnp.int32), 2, num_rows=-1)
