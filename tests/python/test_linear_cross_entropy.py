# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""ab.linear_cross_entropy against an f64 reference."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from anabranch.ops import reference as oracle
from anabranch.ops.linear_cross_entropy import linear_cross_entropy

EPS = np.finfo(np.float32).eps


def reference(x, w, labels, z_loss, cotangent):
    """(losses, dx, dw) in f64; rows whose label is -1 are left out."""
    x, w = (np.where(np.isfinite(part), part, 0).astype(np.float64) for part in (x, w))
    valid = labels >= 0
    logits = x @ w
    top = logits.max(-1, keepdims=True)
    normaliser = (top + np.log(np.exp(logits - top).sum(-1, keepdims=True)))[:, 0]
    rows = np.arange(len(labels))
    losses = normaliser - logits[rows, labels] + z_loss * normaliser**2
    dlogits = np.exp(logits - normaliser[:, None]) * (1 + 2 * z_loss * normaliser)[:, None]
    dlogits[rows, labels] -= 1
    dlogits *= (valid * cotangent)[:, None]
    return np.where(valid, losses, 0), dlogits @ w.T, x.T @ dlogits


def problem(tokens, hidden, vocabulary, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, hidden)).astype(np.float32)
    w = rng.standard_normal((hidden, vocabulary)).astype(np.float32) * hidden**-0.5
    labels = rng.integers(-1, vocabulary, tokens).astype(np.int32)
    return x, w, labels, rng.standard_normal(tokens).astype(np.float32)


@pytest.mark.parametrize(
    ("tokens", "hidden", "vocabulary", "z_loss"),
    [(33, 16, 1003, 1e-4), (5, 8, 1, 0.0), (1, 4, 7, 0.5), (64, 12, 1024, 0.0), (17, 6, 300, 1e-2)],
)
def test_losses_and_gradients_match_f64(tokens, hidden, vocabulary, z_loss) -> None:
    x, w, labels, cotangent = problem(tokens, hidden, vocabulary)

    @jax.jit
    def both(x, w, labels):
        losses, transpose = jax.vjp(
            lambda x, w: linear_cross_entropy(x, w, labels, z_loss=z_loss), x, w
        )
        return losses, *transpose(cotangent)

    results = both(x, w, labels)
    wanted = reference(x, w, labels, z_loss, cotangent.astype(np.float64))
    # A logit carries (H + 1) roundings of about its size (at most 8), a share as many relative ones;
    # gradients sum at most V or T such shares whose total is at most T.
    logit_error = (hidden + 8) * EPS * 8
    for got, want, terms in zip(results, wanted, (4, 4, 4 * tokens**0.5), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=logit_error * terms)


def test_engine_agrees_with_the_oracle() -> None:
    x, w, labels, cotangent = problem(70, 32, 1500)
    results = []
    for function in (linear_cross_entropy, oracle.linear_cross_entropy):
        run = functools.partial(function, labels=labels, z_loss=1e-3)
        losses, transpose = jax.vjp(lambda x, w, run=run: run(x, w), x, w)
        results.append((losses, *transpose(cotangent)))
    # As above; both sides are off.
    for got, want, terms in zip(*results, (4, 4, 4 * 70**0.5), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2 * (32 + 8) * EPS * 8 * terms)


@pytest.mark.parametrize("vocabulary", [1, 129_280])
def test_one_token_of_any_vocabulary(vocabulary) -> None:
    x, w, _, cotangent = problem(1, 5, vocabulary)
    labels = np.array([vocabulary - 1], np.int32)
    losses, transpose = jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels), x, w)
    wanted = reference(x, w, labels, 0.0, cotangent.astype(np.float64))
    for got, want in zip((losses, *transpose(cotangent)), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=(5 + 8) * EPS * 8 * 4)


def test_logits_are_never_whole() -> None:
    tokens, vocabulary = 256, 2048
    x, w, labels, _ = problem(tokens, 8, vocabulary)
    grad = jax.grad(lambda x, w, y: linear_cross_entropy(x, w, y).sum(), (0, 1))
    compiled = jax.jit(grad).lower(x, w, labels).compile()
    assert f"[{tokens},{vocabulary}]" not in compiled.as_text()


def test_bf16_inputs_give_f32_losses_and_gradients_in_their_own_types() -> None:
    x, w, labels, _ = problem(20, 8, 300)
    narrow = jnp.asarray(x, jnp.bfloat16)
    losses, transpose = jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels), narrow, w)
    dx, dw = transpose(jnp.ones(20))
    assert (losses.dtype, dx.dtype, dw.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    wanted, _, _ = reference(narrow.astype(np.float32), w, labels, 0.0, np.ones(20))
    # The weights are rounded to 8 bits: each of 8 terms, of size about 1, is off by 2**-9.
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=2 * 8 * 2**-9)


@pytest.mark.parametrize("weight_dtype", [jnp.bfloat16, jnp.float32])
def test_bf16_products_match_f64_of_the_rounded_operands(weight_dtype) -> None:
    tokens, hidden = 61, 47
    x, w, labels, cotangent = problem(tokens, hidden, 777)
    x, w = jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, weight_dtype)
    losses, transpose = jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels, z_loss=0.01), x, w)
    rounded = (np.asarray(part.astype(jnp.bfloat16), np.float32) for part in (x, w))
    wanted = reference(*rounded, labels, 0.01, cotangent.astype(np.float64))
    error = (hidden + 8) * EPS * 8
    np.testing.assert_allclose(losses, wanted[0], rtol=0, atol=4 * error)
    # Gradients of logits are rounded to 8 bits before they are multiplied: of a row they add up to
    # less than 2 * |cotangent| * 1.2 < 8 in size, w is at most 1 and x at most 5; then the result is.
    for got, want, terms in zip(
        transpose(cotangent), wanted[1:], (1, 5 * tokens**0.5), strict=True
    ):
        bound = 8 * terms * (2**-9 + error) + np.abs(want).max() * 2**-9
        np.testing.assert_allclose(np.asarray(got, np.float32), want, rtol=0, atol=bound)


def test_f16_is_computed_in_f32() -> None:
    x, w, labels, _ = problem(9, 8, 70)
    x, w = jnp.asarray(x, jnp.float16), jnp.asarray(w, jnp.bfloat16)
    losses, transpose = jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels), x, w)
    wide = linear_cross_entropy(x.astype(jnp.float32), w.astype(jnp.float32), labels)
    np.testing.assert_array_equal(losses, wide)
    assert [part.dtype for part in transpose(losses)] == [jnp.float16, jnp.bfloat16]


def test_works_under_remat_scan_vmap_and_shard_map() -> None:
    x, w, labels, cotangent = problem(26, 8, 90)

    def total(x: jax.Array, w: jax.Array) -> jax.Array:
        return (linear_cross_entropy(x, w, labels, z_loss=1e-3) * cotangent).sum()

    def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (c + total(x, w), None), 0.0, None, length=1)[0]

    same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
    want = jax.grad(total, (0, 1))(x, w)
    same(want, jax.jit(jax.grad(jax.checkpoint(total), (0, 1)))(x, w))
    same(want, jax.jit(jax.grad(jax.checkpoint(scanned), (0, 1)))(x, w))
    pairs = (np.stack([x, -x]), np.stack([w, 2 * w]))
    each = [jax.grad(total, (0, 1))(*(part[i] for part in pairs)) for i in range(2)]
    same(
        jax.tree.map(lambda *parts: jnp.stack(parts), *each),
        jax.vmap(jax.grad(total, (0, 1)))(*pairs),
    )

    mesh = Mesh(np.asarray(jax.devices()[:1]), ("d",))
    rows, whole = PartitionSpec("d"), PartitionSpec()
    losses = jax.shard_map(
        linear_cross_entropy, mesh=mesh, in_specs=(rows, whole, rows), out_specs=rows
    )
    sharded = jax.jit(jax.grad(lambda x, w: (losses(x, w, labels) * cotangent).sum(), (0, 1)))
    plain = jax.grad(lambda x, w: (linear_cross_entropy(x, w, labels) * cotangent).sum(), (0, 1))
    same(plain(x, w), sharded(x, w))


def test_d8_ignored_tokens_give_exact_zeros_even_when_not_finite() -> None:
    x, w, labels, _ = problem(33, 16, 1003)
    labels[:] = -1
    x[[3, 7, 32]] = np.nan
    losses, transpose = jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels, z_loss=1e-4), x, w)
    assert (np.asarray(losses) == 0).all()
    assert all((np.asarray(part) == 0).all() for part in transpose(jnp.ones(33)))


def test_d8_nan_under_an_ignored_label_reaches_no_other_gradient() -> None:
    x, w, labels, cotangent = problem(33, 16, 1003)
    labels[5] = -1
    clean = jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels), x, w)[1](cotangent)
    x[5] = np.nan
    dirty = jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels), x, w)[1](cotangent)
    for got, want in zip(dirty, clean, strict=True):
        np.testing.assert_array_equal(got, want)


def test_another_ignore_index() -> None:
    x, w, labels, _ = problem(12, 4, 30)
    labels[:] = 3
    labels[[1, 2]] = 0
    losses = np.asarray(linear_cross_entropy(x, w, labels, ignore_index=0))
    assert (losses[[1, 2]] == 0).all() and (np.delete(losses, [1, 2]) > 0).all()


@pytest.mark.parametrize("wrong", [1003, -2])
def test_d8_label_out_of_range_is_an_error(wrong) -> None:
    x, w, labels, _ = problem(33, 16, 1003)
    labels[4] = wrong
    with pytest.raises(ValueError, match=rf"linear_cross_entropy: labels\[4\]={wrong}; must be"):
        linear_cross_entropy(x, w, labels)
    with pytest.raises(ValueError, match=rf"labels\[4\]={wrong}"):
        jax.vjp(lambda x, w: linear_cross_entropy(x, w, labels), x, w)


def test_d8_label_out_of_range_is_an_error_under_jit() -> None:
    x, w, labels, _ = problem(33, 16, 1003)
    labels[[4, 9]] = 1003
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match=r"labels\[4\]=1003; must be in \[0, 1003\)"
    ):
        jax.block_until_ready(jax.jit(linear_cross_entropy)(x, w, labels))


@pytest.mark.parametrize(
    ("x", "w", "labels", "expected"),
    [
        ((3, 4), (5, 6), (3,), r"\(3, 4\).*\(5, 6\)"),
        ((3, 4), (4, 6), (2,), r"\(2,\)"),
        ((2, 3, 4), (4, 6), (3,), r"\[T, H\]"),
    ],
)
def test_wrong_shapes_are_printed(x, w, labels, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        linear_cross_entropy(jnp.zeros(x), jnp.zeros(w), jnp.zeros(labels, jnp.int32))


def test_wrong_types_are_printed() -> None:
    with pytest.raises(ValueError, match="labels float32"):
        linear_cross_entropy(jnp.zeros((3, 4)), jnp.zeros((4, 5)), jnp.zeros(3))
