# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""ab.attention against an f64 reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anabranch.ops.attention import attention

# Rounding of one f32 value; sums below have up to 200 terms of size about 1.
EPS = np.finfo(np.float32).eps


def reference(query, key, value, scale, causal, segment_ids):
    """Softmax attention, one batch element and head at a time, in f64."""
    batch, length, heads, _ = query.shape
    out = np.zeros((batch, length, heads, value.shape[-1]))
    share = heads // key.shape[2]
    for b in range(batch):
        seen = (
            np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
        )
        if segment_ids is not None:
            seen = seen & (segment_ids[b][:, None] == segment_ids[b][None, :])
        for n in range(heads):
            scores = scale * query[b, :, n] @ key[b, :, n // share].T
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[b, :, n] = weights / weights.sum(-1, keepdims=True) @ value[b, :, n // share]
    return out


def reference_gradients(query, key, value, scale, causal, segment_ids, cotangent):
    """Gradients of sum(cotangent * reference) in f64, written out from the softmax's derivative."""
    batch, length, heads, _ = query.shape
    share = heads // key.shape[2]
    grads = [np.zeros(part.shape) for part in (query, key, value)]
    for b in range(batch):
        seen = (
            np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
        )
        if segment_ids is not None:
            seen = seen & (segment_ids[b][:, None] == segment_ids[b][None, :])
        for n in range(heads):
            q, k, v = query[b, :, n], key[b, :, n // share], value[b, :, n // share]
            scores = np.where(seen, scale * q @ k.T, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            dp = cotangent[b, :, n] @ v.T
            ds = p * (dp - (p * dp).sum(-1, keepdims=True))
            grads[0][b, :, n] += scale * ds @ k
            grads[1][b, :, n // share] += scale * ds.T @ q
            grads[2][b, :, n // share] += p.T @ cotangent[b, :, n]
    return grads


def problem(seed, batch, length, heads, kv_heads, size, value_size):
    rng = np.random.default_rng(seed)
    shapes = [(heads, size), (kv_heads, size), (kv_heads, value_size), (heads, value_size)]
    return [rng.standard_normal((batch, length, *shape)).astype(np.float32) for shape in shapes]


CASES = [
    # batch, length, heads, kv heads, size, value size, causal, segments
    (2, 7, 3, 3, 6, 5, True, False),
    (1, 1, 2, 1, 4, 4, True, False),
    (2, 150, 4, 2, 8, 6, True, True),
    (1, 150, 4, 1, 8, 6, False, True),
    (1, 130, 2, 2, 6, 6, False, False),
]


def segments_of(case):
    if not case[7]:
        return None
    rng = np.random.default_rng(5)
    return np.sort(rng.integers(0, 4, (case[0], case[1])).astype(np.int32), axis=1)[:, ::-1].copy()


@pytest.mark.parametrize("case", CASES)
def test_forward_and_gradients_match_f64(case) -> None:
    query, key, value, cotangent = problem(1, *case[:6])
    causal, segment_ids, scale = case[6], segments_of(case), 0.3

    def scalar(q, k, v):
        out = attention(q, k, v, scale=scale, causal=causal, segment_ids=segment_ids)
        return jnp.sum(out * cotangent), out

    grads, out = jax.jit(jax.grad(scalar, (0, 1, 2), has_aux=True))(query, key, value)
    wide = [part.astype(np.float64) for part in (query, key, value)]
    expected = reference(*wide, scale, causal, segment_ids)
    # Outputs average values of size about 3: (terms + a few) roundings of them.
    bound = (case[1] + 16) * EPS * 3
    np.testing.assert_allclose(out, expected, rtol=0, atol=bound)
    expected = reference_gradients(*wide, scale, causal, segment_ids, cotangent.astype(np.float64))
    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=bound * max(1.0, np.abs(want).max()))


def test_bf16_differs_from_f32_by_its_rounding() -> None:
    query, key, value, _ = problem(2, 1, 40, 2, 2, 16, 8)
    narrow = [jnp.asarray(part, jnp.bfloat16) for part in (query, key, value)]
    out = attention(*narrow)
    assert out.dtype == jnp.bfloat16
    expected = attention(*(part.astype(jnp.float32) for part in narrow))
    # Shares and the result are rounded to 8 bits each; shares sum to 1 and values are below 4.
    np.testing.assert_allclose(out.astype(np.float32), expected, rtol=0, atol=2 * 2**-8 * 4)


def test_default_scale_is_the_inverse_root_of_the_head_size() -> None:
    query, key, value, _ = problem(3, 1, 9, 2, 2, 16, 8)
    expected = attention(query, key, value, scale=0.25)
    np.testing.assert_array_equal(attention(query, key, value), expected)


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
    ("shapes", "expected"),
    [
        (((2, 3, 4), (2, 3, 4), (2, 3, 4)), "batch, positions, heads, size"),
        (((1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)), r"\(1, 3, 4, 8\).*\(1, 2, 4, 8\)"),
        (((1, 3, 4, 8), (1, 3, 4, 6), (1, 3, 4, 6)), "one size"),
        (((1, 3, 4, 8), (1, 3, 3, 8), (1, 3, 3, 8)), "multiple of key heads"),
    ],
)
def test_wrong_shapes_are_printed(shapes, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        attention(*(jnp.zeros(shape) for shape in shapes))


def test_wrong_types_and_segments_are_printed() -> None:
    x = jnp.zeros((1, 3, 2, 4))
    with pytest.raises(ValueError, match="float32.*bfloat16"):
        attention(x, x.astype(jnp.bfloat16), x)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        attention(x, x, x, segment_ids=jnp.zeros((3,), jnp.int32))
