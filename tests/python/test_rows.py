# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""gather_rows and combine_rows against plain numpy, their gradients, and their errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab
from anabranch.ops import reference

# A fault that the engine finds while JAX is still dispatching the call surfaces as ValueError, a
# later one as JaxRuntimeError; the message is the same.
ENGINE_ERRORS = (jax.errors.JaxRuntimeError, ValueError)

EPS = 2.0**-24
DTYPES = [jnp.float32, jnp.bfloat16, jnp.float16]


def problem(
    dtype: Any, tokens: int = 29, topk: int = 3, hidden: int = 17, num_experts: int = 5
) -> tuple[ab.RaggedPlan, np.ndarray, jax.Array, jax.Array, jax.Array]:
    """A plan with unrouted slots and unused rows: plan, ids, x, rows, weights."""
    rng = np.random.default_rng(0)
    ids = rng.integers(-1, num_experts, (tokens, topk)).astype(np.int32)
    plan = ab.ragged_plan(ids, num_experts, num_rows=tokens * topk + 4)
    x = jnp.asarray(rng.normal(size=(tokens, hidden)), dtype)
    rows = jnp.asarray(rng.normal(size=(tokens * topk + 4, hidden)), dtype)
    weights = jnp.asarray(rng.normal(size=(tokens, topk)), jnp.float32)
    return plan, ids, x, rows, weights


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_copies_rows_and_zeroes_the_tail(dtype: Any) -> None:
    plan, ids, x, _, weights = problem(dtype)
    rows, row_weights = ab.gather_rows(x, plan, weights)
    assert rows.dtype == dtype and row_weights.dtype == jnp.float32
    expected = np.zeros(rows.shape, rows.dtype)
    expected_weights = np.zeros(row_weights.shape, np.float32)
    slots = np.argwhere(ids >= 0)
    for row, (token, slot) in enumerate(sorted(slots, key=lambda s: (ids[tuple(s)], s[0], s[1]))):
        expected[row] = x[token]
        expected_weights[row] = weights[token, slot]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(row_weights, expected_weights)
    np.testing.assert_array_equal(ab.gather_rows(x, plan), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_combine_adds_in_f32_in_ascending_expert_order(dtype: Any, weighted: bool) -> None:
    plan, ids, _, rows, weights = problem(dtype)
    y = ab.combine_rows(rows, plan, weights if weighted else None)
    assert y.dtype == dtype
    slot_row = np.asarray(plan.slot_row)
    wide = np.asarray(rows, np.float32)
    expected = np.zeros(y.shape, np.float32)
    for token in range(len(ids)):
        for slot in np.argsort(ids[token], kind="stable"):
            if ids[token, slot] >= 0:
                value = wide[slot_row[token, slot]]
                expected[token] += np.asarray(weights)[token, slot] * value if weighted else value
    # numpy rounds each f32 product and sum, and once to the row type, exactly as the contract says.
    np.testing.assert_array_equal(y, np.asarray(jnp.asarray(expected).astype(dtype)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_match_f64(dtype: Any) -> None:
    plan, _, x, rows, weights = problem(dtype)
    rng = np.random.default_rng(1)
    d_rows = rng.normal(size=rows.shape).astype(np.float32)
    d_row_weights = rng.normal(size=rows.shape[0]).astype(np.float32)
    d_y = rng.normal(size=x.shape).astype(np.float32)
    d_y2 = rng.normal(size=x.shape).astype(np.float32)

    def value(ops: Any, x: Any, rows: Any, weights: Any, cotangents: Any) -> jax.Array:
        c_rows, c_weights, c_y, c_y2 = cotangents
        gathered, row_weights = ops.gather_rows(x, plan, weights)
        return (
            (gathered * c_rows).sum()
            + (row_weights * c_weights).sum()
            + (ops.combine_rows(rows, plan, weights) * c_y).sum()
            + (ops.combine_rows(rows, plan) * c_y2).sum()
        )

    def gradients(ops: Any, *arguments: Any) -> Any:
        return jax.jit(jax.grad(lambda *a: value(ops, *a), (0, 1, 2)))(*arguments)

    cotangents = (d_rows, d_row_weights, d_y, d_y2)
    rounded = [np.asarray(jnp.asarray(c).astype(dtype), np.float64) for c in (d_rows, d_y, d_y2)]
    ours = gradients(ab, x, rows, weights, cotangents)
    assert [g.dtype for g in ours] == [dtype, dtype, jnp.float32]
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(a, np.float64)) for a in (x, rows, weights)]
        # The cotangent that reaches an op has its result's type.
        exact = gradients(
            reference, *wide, (rounded[0], d_row_weights.astype(np.float64), *rounded[1:])
        )
        exact = [np.asarray(g) for g in exact]
    unit = EPS if dtype == jnp.float32 else 2.0**-8
    # x: k terms. rows: two terms, each rounded to the row type, as is their sum. weights: H terms.
    size = np.abs(rounded[0]).max() * 3
    assert np.abs(np.asarray(ours[0], np.float64) - exact[0]).max() <= 3 * unit * size
    size = np.abs(rounded[1]).max() * np.abs(weights).max() + np.abs(rounded[2]).max()
    assert np.abs(np.asarray(ours[1], np.float64) - exact[1]).max() <= 3 * unit * size
    size = float((np.abs(np.asarray(rows, np.float32)).max() * np.abs(d_y)).sum(1).max())
    assert np.abs(np.asarray(ours[2], np.float64) - exact[2]).max() <= (17 + 2) * EPS * (size + 4)
    # Nothing reaches rows past the end, or weights of slots that are routed nowhere.
    used = int(plan.group_offsets[-1])
    assert (np.asarray(ours[1])[used:] == 0).all()
    assert (np.asarray(ours[2])[np.asarray(plan.slot_row) < 0] == 0).all()


def test_nothing_is_routed() -> None:
    for tokens in (0, 6):
        plan = ab.ragged_plan(jnp.full((tokens, 2), -1), 3)
        x = jax.random.normal(jax.random.key(0), (tokens, 4))
        rows = jax.random.normal(jax.random.key(1), (tokens * 2, 4))
        weights = jnp.full((tokens, 2), jnp.nan)  # ignored
        np.testing.assert_array_equal(ab.gather_rows(x, plan), np.zeros((tokens * 2, 4)))
        np.testing.assert_array_equal(ab.combine_rows(rows, plan, weights), np.zeros((tokens, 4)))
        gradients = jax.grad(
            lambda x, rows, w, plan=plan: (
                ab.gather_rows(x, plan, w)[0].sum() + ab.combine_rows(rows, plan, w).sum()
            ),
            (0, 1, 2),
        )(x, rows, weights)
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))
    # No rows at all, but tokens.
    plan = ab.ragged_plan(jnp.full((3, 2), -1), 3, num_rows=0)
    gradient = jax.grad(lambda w: ab.gather_rows(jnp.ones((3, 4)), plan, w)[1].sum())(
        jnp.ones((3, 2))
    )
    np.testing.assert_array_equal(gradient, np.zeros((3, 2)))
    np.testing.assert_array_equal(ab.combine_rows(jnp.ones((0, 4)), plan), np.zeros((3, 4)))


def test_nan_rows_stay_in_their_token() -> None:
    plan, _, x, _, weights = problem(jnp.float32)
    dirty = x.at[3].set(jnp.nan)
    y = ab.combine_rows(ab.gather_rows(dirty, plan), plan, weights)
    np.testing.assert_array_equal(np.isnan(y).any(axis=1), np.arange(29) == 3)


def layer(x: jax.Array, ids: jax.Array, weights: jax.Array, d: jax.Array) -> jax.Array:
    plan = ab.ragged_plan(ids, 5)
    rows, row_weights = ab.gather_rows(x, plan, weights)
    y = ab.combine_rows(jnp.tanh(rows) * row_weights[:, None], plan)
    return ((y + ab.combine_rows(rows, plan, weights)) * d).sum()


def test_works_under_remat_scan_vmap_and_shard_map() -> None:
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.normal(size=(4, 12, 7)), jnp.float32)
    ids = jnp.asarray(rng.integers(-1, 5, (4, 12, 2)), jnp.int32)
    weights = jnp.asarray(rng.normal(size=(4, 12, 2)), jnp.float32)
    d = jnp.asarray(rng.normal(size=(4, 12, 7)), jnp.float32)
    expected = jax.jit(
        lambda x, w: jax.lax.map(lambda a: jax.grad(layer, (0, 2))(*a), (x, ids, w, d))
    )(x, weights)

    def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda c, a: (c + layer(*a), None))
        return jax.lax.scan(body, 0.0, (x, ids, w, d))[0]

    def batched(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.vmap(layer)(x, ids, w, d).sum()

    def mapped(x: jax.Array, w: jax.Array) -> jax.Array:
        spec = PartitionSpec("data")
        function = jax.shard_map(
            lambda *a: jax.lax.psum(layer(*(leaf[0] for leaf in a)), "data"),
            mesh=Mesh(np.array(jax.devices()[:4]), ("data",)),
            in_specs=(spec,) * 4,
            out_specs=PartitionSpec(),
        )
        return function(x, ids, w, d)

    for function in (scanned, batched, mapped):
        ours = jax.jit(jax.grad(function, (0, 1)))(x, weights)
        # XLA may fuse the tanh between the ops differently; ours in between give the same bits.
        for gradient, exact in zip(ours, expected, strict=True):
            np.testing.assert_allclose(gradient, exact, rtol=0, atol=64 * EPS)


def test_weights_replicated_over_a_mesh_get_the_summed_gradient() -> None:
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(8, 5)), jnp.float32)
    ids = jnp.asarray(rng.integers(0, 5, (2, 2)), jnp.int32)
    weights = jnp.asarray(rng.normal(size=(2, 2)), jnp.float32)
    d = jnp.asarray(rng.normal(size=(8, 5)), jnp.float32)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    spec = PartitionSpec("data")

    def mapped(w: jax.Array) -> jax.Array:
        function = jax.shard_map(
            lambda x, w, d: jax.lax.psum(layer(x, ids, w, d), "data"),
            mesh=mesh,
            in_specs=(spec, PartitionSpec(), spec),
            out_specs=PartitionSpec(),
        )
        return function(x, w, d)

    parts = [jax.grad(layer, 2)(x[i : i + 2], ids, weights, d[i : i + 2]) for i in range(0, 8, 2)]
    np.testing.assert_allclose(jax.jit(jax.grad(mapped))(weights), sum(parts), atol=64 * EPS)


def test_foreign_plan_is_an_error_not_a_wild_read() -> None:
    plan, _, x, rows, weights = problem(jnp.float32)
    bad_token = plan._replace(row_token=plan.row_token.at[2].set(29))
    bad_row = plan._replace(slot_row=plan.slot_row.at[1, 1].set(10**6))
    with pytest.raises(ENGINE_ERRORS, match=r"gather_rows: row_token\[2\]=29"):
        jax.block_until_ready(ab.gather_rows(x, bad_token))
    with pytest.raises(ENGINE_ERRORS, match=r"combine_rows: slot_row\[4\]=1000000"):
        jax.block_until_ready(ab.combine_rows(rows, bad_row))
    with pytest.raises(ENGINE_ERRORS, match=r"slot_row\[4\]=1000000"):
        jax.block_until_ready(ab.gather_rows(x, bad_row, weights))
    assert np.isfinite(ab.combine_rows(rows, plan, weights)).all()


def test_wrong_arguments_are_named() -> None:
    plan, _, x, rows, weights = problem(jnp.float32)
    with pytest.raises(ValueError, match=r"x must be \[29, H\].*float32\[28, 17\]"):
        ab.gather_rows(x[1:], plan)
    with pytest.raises(ValueError, match=r"rows must be \[91, H\].*float32\[90, 17\]"):
        ab.combine_rows(rows[1:], plan)
    with pytest.raises(ValueError, match=r"weights must be .*\[29, 3\].*float32\[29, 2\]"):
        ab.combine_rows(rows, plan, weights[:, 1:])
    with pytest.raises(ValueError, match=r"int32\[29, 17\]"):
        ab.gather_rows(x.astype(jnp.int32), plan)
