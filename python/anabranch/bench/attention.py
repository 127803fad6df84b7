# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Rows ``attention_*`` of the suite ``layer``: causal attention, forward and gradient, through JAX."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import engine
from anabranch.bench.timing import measure
from anabranch.ops import reference
from anabranch.ops.attention import attention

_HEADS, _QUERY_KEY_SIZE, _VALUE_SIZE = 8, 96, 64  # of the recipe `bench-190m`
_SHAPES = (("attention_512", 4, 512), ("attention_4096", 1, 4096))


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``attention_512`` and ``attention_4096`` (sequence lengths) and their ``_forward`` twins."""
    for name, batch, length in _SHAPES:
        rng = np.random.default_rng(0)
        sizes = (_QUERY_KEY_SIZE, _QUERY_KEY_SIZE, _VALUE_SIZE, _VALUE_SIZE)
        query, key, value, y_grad = (
            jnp.asarray(rng.normal(size=(batch, length, _HEADS, size)), jnp.bfloat16)
            for size in sizes
        )

        @jax.jit
        def step(*args: jax.Array, y_grad: jax.Array = y_grad) -> Any:
            y, pullback = jax.vjp(attention, *args)
            return y, pullback(y_grad)

        args = (query, key, value)
        common = {
            "shape": {"B": batch, "S": length, "N": _HEADS, "D": sizes[0], "Dv": sizes[2]},
            "dtype": "bfloat16",
            "threads": engine.num_threads(),
            "max_error": _check(args, y_grad, step(*args)),
        }
        # Two products over the half of the scores that the causal mask leaves; four in the gradient.
        flops = batch * _HEADS * float(length) ** 2 * (_QUERY_KEY_SIZE + _VALUE_SIZE)
        for suffix, run, passes in (("_forward", jax.jit(attention), 1), ("", step, 3)):
            timing = measure(functools.partial(_wait_for, run, *args), budget_seconds=1.0)
            yield {"name": name + suffix, "flops": passes * flops, "timing": timing, **common}


def _wait_for(run: Any, *args: jax.Array) -> None:
    jax.block_until_ready(run(*args))


def _check(args: Any, y_grad: jax.Array, result: Any) -> float:
    """Largest error of the first head's output and value gradient, relative to their largest value.

    Shares and results are rounded to bf16, by 2^-8 each at most, and sums of S terms in f32 by S * 2^-23:
    an output is wrong by no more than that times the sum of its terms' magnitudes, which is attention
    over |value|. The value's gradient is bounded alike, by |y_grad| pulled back.
    """
    query, key, value, y_grad = (a[:1, :, :1].astype(jnp.float32) for a in (*args, y_grad))
    scale = query.shape[-1] ** -0.5
    unit = 2 * 2.0**-8 + query.shape[1] * 2.0**-23
    function = lambda v: reference.attention(query, key, v, scale, True, None)  # noqa: E731
    y, pullback = jax.vjp(function, value)
    checks = (
        (result[0], y, function(jnp.abs(value))),
        (result[1][2], pullback(y_grad)[0], pullback(jnp.abs(y_grad))[0]),
    )
    worst = 0.0
    for got, expected, magnitude in checks:
        difference = jnp.abs(got[:1, :, :1].astype(jnp.float32) - expected)
        if not bool(jnp.all(difference <= unit * magnitude)):
            raise RuntimeError(
                f"bench: attention is wrong: max error {float(difference.max()):.3e}"
            )
        worst = max(worst, float(difference.max() / jnp.abs(expected).max()))
    return worst
