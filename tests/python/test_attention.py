# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""ab.attention against f64, under every transformation, and its errors."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from anabranch.ops import reference
from anabranch.ops.attention import attention

# Rounding of one f32 value; sums below have up to 200 terms of size about 1.
EPS = np.finfo(np.float32).eps


def visible(length, causal, segment_ids):
    """[S, S]: whether position s sees position t; 0 is padding, which neither sees nor is seen."""
    seen = np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
    if segment_ids is None:
        return seen
    return seen & (segment_ids[:, None] == segment_ids[None, :]) & (segment_ids != 0)[:, None]


def shares_of(query, key, scale, seen):
    """Softmax of one head in f64; rows that see nothing are 0."""
    scores = np.where(seen, scale * query @ key.T, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def expected(query, key, value, cotangent, scale, causal, segment_ids):
    """Output and gradients of sum(cotangent * output) in f64, one head at a time."""
    batch, length, heads, _ = query.shape
    share = heads // key.shape[2]
    out = np.zeros((batch, length, heads, value.shape[-1]))
    grads = [np.zeros(part.shape) for part in (query, key, value)]
    for b in range(batch):
        seen = visible(length, causal, None if segment_ids is None else segment_ids[b])
        for n in range(heads):
            q, k, v = query[b, :, n], key[b, :, n // share], value[b, :, n // share]
            p = shares_of(q, k, scale, seen)
            out[b, :, n] = p @ v
            dp = cotangent[b, :, n] @ v.T
            ds = p * (dp - (p * dp).sum(-1, keepdims=True))
            grads[0][b, :, n] += scale * ds @ k
            grads[1][b, :, n // share] += scale * ds.T @ q
            grads[2][b, :, n // share] += p.T @ cotangent[b, :, n]
    return out, grads


def problem(seed, batch, length, heads, kv_heads, size, value_size):
    rng = np.random.default_rng(seed)
    shapes = [(heads, size), (kv_heads, size), (kv_heads, value_size), (heads, value_size)]
    return [rng.standard_normal((batch, length, *shape)).astype(np.float32) for shape in shapes]


CASES = [
    # batch, length, heads, kv heads, size, value size, causal, segments
    (2, 7, 3, 3, 6, 5, True, False),
    (1, 1, 2, 1, 4, 4, True, False),
    (1, 1, 1, 1, 1, 1, False, True),
    (2, 150, 4, 2, 8, 6, True, True),
    (1, 150, 4, 1, 8, 6, False, True),
    (1, 130, 2, 2, 6, 6, False, False),
    (1, 301, 2, 2, 96, 64, True, False),
    (1, 2048, 1, 1, 16, 8, True, True),
]


def segments_of(case):
    """Documents in order, then padding."""
    if not case[7]:
        return None
    rng = np.random.default_rng(5)
    ids = np.sort(rng.integers(0, 4, (case[0], case[1])).astype(np.int32), axis=1)
    return np.roll(ids, -(ids == 0).sum(), axis=1) if case[0] == 1 else ids[:, ::-1].copy()


@functools.partial(jax.jit, static_argnames=("function", "scale", "causal"))
def run(function, query, key, value, cotangent, scale, causal, segment_ids):
    """Output and gradients of sum(cotangent * output)."""
    call = functools.partial(function, scale=scale, causal=causal, segment_ids=segment_ids)
    out, pullback = jax.vjp(call, query, key, value)
    return out, pullback(cotangent)


def assert_close(got, want, bound, what):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0, atol=bound, err_msg=what)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_match_f64(case, dtype) -> None:
    narrow = [jnp.asarray(part, dtype) for part in problem(1, *case[:6])]
    wide = [np.asarray(part.astype(jnp.float32), np.float64) for part in narrow]
    causal, segment_ids, scale = case[6], segments_of(case), 0.3
    out, grads = run(attention, *narrow, scale, causal, segment_ids)
    want, want_grads = expected(*wide, scale, causal, segment_ids)
    assert out.dtype == dtype and out.shape == want.shape
    # Shares, the gradients of scores, the output inside their mean, and the result are rounded: up
    # to four units of what is added up; f32 sums have up to `terms` terms.
    unit = 2.0**-8 if dtype == "bfloat16" else EPS
    error = 4 * unit + (case[1] + case[4] + case[5]) * EPS
    size = [np.abs(part).max() for part in wide]
    assert_close(out, want, error * size[2], "output")
    most = np.sqrt(case[5]) * size[2] * size[3]  # of the gradient of a share
    seen = max(
        1.0,
        np.abs(expected(*wide[:3], np.ones_like(wide[3]), scale, causal, segment_ids)[1][2]).max(),
    )
    bounds = (scale * most * size[1], scale * most * size[0] * seen, size[3] * seen)
    for name, got, expect, bound in zip("qkv", grads, want_grads, bounds, strict=True):
        assert got.dtype == dtype
        assert_close(got, expect, 2 * error * bound, name)


@pytest.mark.parametrize("case", CASES[:6])
def test_the_oracle_matches_f64_and_the_engine(case) -> None:
    parts = [part.astype(np.float64) for part in problem(7, *case[:6])]
    segment_ids = segments_of(case)
    want, want_grads = expected(*parts, 0.3, case[6], segment_ids)
    with jax.enable_x64(True):
        wide = [jnp.asarray(part, jnp.float64) for part in parts]
        for function in (reference.attention, attention):  # f64 takes the oracle's way
            out, grads = run(function, *wide, 0.3, case[6], segment_ids)
            assert out.dtype == jnp.float64
            assert_close(out, want, 1e-12, "output")
            for got, expect in zip(grads, want_grads, strict=True):
                assert_close(got, expect, 1e-12 * max(1, np.abs(expect).max()), "gradient")


def test_bf16_differs_from_f32_by_its_rounding() -> None:
    query, key, value, _ = problem(2, 1, 40, 2, 2, 16, 8)
    narrow = [jnp.asarray(part, jnp.bfloat16) for part in (query, key, value)]
    out = attention(*narrow)
    assert out.dtype == jnp.bfloat16
    want = attention(*(part.astype(jnp.float32) for part in narrow))
    # Shares and the result are rounded to 8 bits each; shares sum to 1 and values are below 4.
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=0, atol=2 * 2**-8 * 4)


def test_f16_is_computed_in_f32_and_rounded() -> None:
    query, key, value, _ = problem(3, 1, 20, 2, 1, 8, 8)
    half = [jnp.asarray(part, jnp.float16) for part in (query, key, value)]
    want = attention(*(part.astype(jnp.float32) for part in half)).astype(jnp.float16)
    np.testing.assert_array_equal(attention(*half), want)


def test_works_under_remat_scan_vmap_and_shard_map() -> None:
    query, key, value, cotangent = problem(8, 4, 70, 4, 2, 16, 8)
    ids = np.repeat([[1, 2, 0]], [30, 30, 10], axis=1).repeat(4, axis=0).astype(np.int32)
    out, grads = run(attention, query, key, value, cotangent, 0.3, True, ids)
    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)

    def scalar(query, key, value):
        mixed = attention(query, key, value, scale=0.3, segment_ids=ids)
        return (mixed * cotangent).sum()

    def scanned(*args):
        body = jax.checkpoint(lambda carry, _: (carry + scalar(*args), None))
        return jax.lax.scan(body, 0.0, None, length=1)[0]

    for function in (scalar, jax.checkpoint(scalar), scanned):
        same(grads, jax.jit(jax.grad(function, (0, 1, 2)))(query, key, value))

    one = lambda q, k, v, i: attention(q[None], k[None], v[None], scale=0.3, segment_ids=i[None])[0]  # noqa: E731
    same(out, jax.jit(jax.vmap(one))(query, key, value, ids))

    # Batch over four devices, key shared as one would a parameter: its gradient is summed.
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("data",))
    rows, whole = PartitionSpec("data"), PartitionSpec()

    def sharded(query, key, value, cotangent):
        mixed = attention(query, jnp.broadcast_to(key, query.shape[:2] + key.shape[2:]), value)
        return jax.lax.psum((mixed * cotangent).sum(), "data")

    mapped = jax.shard_map(sharded, mesh=mesh, in_specs=(rows, whole, rows, rows), out_specs=whole)
    got = jax.jit(jax.grad(mapped, (0, 1, 2)))(query, key[:1], value, cotangent)
    want = run(attention, query, key[:1].repeat(4, 0), value, cotangent, None, True, None)[1]
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[2], want[2])
    want = np.asarray(want[1], np.float64).sum(0, keepdims=True)
    assert_close(got[1], want, 8 * EPS * np.abs(want).max(), "key")


def test_long_sequences_need_memory_in_proportion() -> None:
    shape = jax.ShapeDtypeStruct((1, 32768, 1, 8), jnp.bfloat16)
    function = jax.grad(lambda q, k, v: attention(q, k, v).astype(jnp.float32).sum(), (0, 1, 2))
    analysis = jax.jit(function).lower(shape, shape, shape).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 16 * 32768 * 8 * 4


def test_32768_positions_and_their_gradients_match_f64() -> None:
    length, size, picked = 32768, 8, np.array([0, 20_000, 32_767])
    query, key, value = problem(3, 1, length, 1, 1, size, size)[:3]
    cotangent = np.zeros((1, length, 1, size), np.float32)
    cotangent[0, picked, 0] = np.random.default_rng(4).standard_normal((3, size))
    out, pullback = jax.vjp(jax.jit(attention), *map(jnp.asarray, (query, key, value)))
    q, k, v, c = (np.asarray(a, np.float64)[0, :, 0] for a in (query, key, value, cotangent))
    scores = q[picked] @ k.T * size**-0.5
    scores[np.arange(length) > picked[:, None]] = -np.inf
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = c[picked] @ v.T
    score_grads = shares * (rows - (shares * rows).sum(axis=1, keepdims=True)) * size**-0.5
    grads = [np.zeros_like(q), score_grads.T @ q[picked], shares.T @ c[picked]]
    grads[0][picked] = score_grads @ k
    # Scores of some units leave 10 eps on each share; a sum has at most 192 terms in each of its blocks of
    # keys and one addition a block, and its terms' sizes add up to those of the values.
    bound = (10 + 192 + length / 192) * np.finfo(np.float32).eps
    np.testing.assert_allclose(out[0, picked, 0], shares @ v, rtol=0, atol=bound * np.abs(v).max())
    scale = 2 * np.abs(rows).max() * max(np.abs(q).max(), np.abs(k).max())
    for grad, want in zip(pullback(jnp.asarray(cotangent)), grads, strict=True):
        np.testing.assert_allclose(grad[0, :, 0], want, rtol=0, atol=bound * scale)


def test_blocks_that_see_nothing_change_nothing() -> None:
    """A document in the middle of a long row is what it is on its own, to the bit."""
    query, key, value, cotangent = problem(9, 1, 960, 2, 1, 16, 8)
    ids = np.zeros((1, 960), np.int32)
    part = slice(384, 576)  # begins and ends where blocks of 64, 96 and 128 do
    ids[:, part] = 5
    out, grads = run(attention, query, key, value, cotangent, 0.3, True, ids)
    short = [x[:, part] for x in (query, key, value, cotangent)]
    want, want_grads = run(attention, *short, 0.3, True, None)
    for got, expect in zip((out, *grads), (want, *want_grads), strict=True):
        np.testing.assert_array_equal(got[:, part], expect)
        assert not np.asarray(got[:, : part.start]).any()
        assert not np.asarray(got[:, part.stop :]).any()


def test_default_scale_is_the_inverse_root_of_the_head_size() -> None:
    query, key, value, _ = problem(3, 1, 9, 2, 2, 16, 8)
    want = attention(query, key, value, scale=0.25)
    np.testing.assert_array_equal(attention(query, key, value), want)


def test_a_segment_is_blind_to_its_neighbours() -> None:
    query, key, value, _ = problem(4, 1, 24, 2, 2, 8, 8)
    segment_ids = np.repeat([[1, 2, 3]], 8, axis=1).reshape(1, 24).astype(np.int32)
    segment_ids = np.sort(segment_ids, axis=1)
    together = attention(query, key, value, segment_ids=segment_ids)
    for start in (0, 8, 16):
        part = slice(start, start + 8)
        alone = attention(query[:, part], key[:, part], value[:, part])
        np.testing.assert_allclose(together[:, part], alone, rtol=0, atol=32 * EPS * 3)


def test_scores_of_any_size_stay_finite() -> None:
    query, key, value, _ = problem(6, 1, 8, 1, 1, 4, 4)
    out = attention(1e18 * query, 1e18 * key, value)
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 4), (2, 3, 4), (2, 3, 4)), "batch, positions, heads, size"),
        (((1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)), r"\(1, 3, 4, 8\).*\(1, 2, 4, 8\)"),
        (((1, 3, 4, 8), (1, 3, 4, 6), (1, 3, 4, 6)), "one size"),
        (((1, 3, 4, 8), (1, 3, 3, 8), (1, 3, 3, 8)), "multiple of key heads"),
    ],
)
def test_wrong_shapes_are_printed(shapes, message) -> None:
    with pytest.raises(ValueError, match=message):
        attention(*(jnp.zeros(shape) for shape in shapes))


def test_wrong_types_and_segments_are_printed() -> None:
    x = jnp.zeros((1, 3, 2, 4))
    with pytest.raises(ValueError, match="float32.*bfloat16"):
        attention(x, x.astype(jnp.bfloat16), x)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        attention(x, x, x, segment_ids=jnp.zeros((3,), jnp.int32))
