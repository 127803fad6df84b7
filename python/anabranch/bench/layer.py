# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``layer``: routed experts and attention through JAX, forward and gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import engine
from anabranch.bench import attention
from anabranch.bench.timing import measure
from anabranch.ops import reference
from anabranch.ops.moe_ffn import moe_ffn
from anabranch.ops.pack_experts import PackedExperts, pack_experts
from anabranch.ops.ragged_dot import ragged_dot
from anabranch.ops.router import Routing

# (name, tokens, hidden, width, experts, topk)
_LAYERS = (
    ("moe_ffn_192_rows", 2048, 2048, 1408, 64, 6),
    ("moe_ffn_48_rows", 512, 2048, 1408, 64, 6),
    ("moe_ffn_small_experts", 2048, 512, 256, 256, 8),
)
_CHECKED_TOKENS = 8


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``moe_ffn_*`` (forward and gradient), their ``_forward`` and ``_packed`` twins, and others.

    Experts' weights are packed inside the timed call, except in the ``_packed`` rows: those are given
    the panels that ``pack_experts`` makes once a step.
    """
    for name, tokens, hidden, width, experts, topk in _LAYERS:
        yield from _moe_rows(name, tokens, hidden, width, experts, topk)
    yield from _ragged_dot_rows()
    yield from attention.rows()


def _moe_rows(
    name: str, tokens: int, hidden: int, width: int, experts: int, topk: int
) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    # Random draws for a hundred million weights would take longer than the benchmark.
    draws = jnp.asarray(rng.normal(size=1 << 16) * hidden**-0.5, jnp.bfloat16)

    def weight(shift: int, *shape: int) -> jax.Array:
        return jnp.resize(jnp.roll(draws, shift)[: (1 << 16) - 1], shape)  # odd period: no pattern

    x, y_grad = (jnp.asarray(rng.normal(size=(tokens, hidden)), jnp.bfloat16) for _ in range(2))
    ids = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk].astype(np.int32)
    weights = jnp.asarray(rng.dirichlet(np.ones(topk), tokens), jnp.float32)
    experts_weights = (
        weight(1, experts, hidden, width),
        weight(2, experts, hidden, width),
        weight(3, experts, width, hidden),
    )
    routing = Routing(jnp.asarray(ids), weights, None)

    def forward(
        x: jax.Array, weights: jax.Array, *w: jax.Array, packed: PackedExperts | None = None
    ) -> jax.Array:
        return moe_ffn(x, Routing(routing.experts, weights, None), *w, packed=packed)

    @jax.jit
    def step(x: jax.Array, weights: jax.Array, *w: jax.Array) -> Any:
        y, pullback = jax.vjp(forward, x, weights, *w)
        return y, pullback(y_grad)

    args = (x, weights, *experts_weights)
    error = _check(ids, args, y_grad, step(*args))
    shape = {"T": tokens, "H": hidden, "F": width, "E": experts, "k": topk}
    common = {
        "shape": shape,
        "dtype": "bfloat16",
        "threads": engine.num_threads(),
        "max_error": error,
    }
    flops = 6.0 * tokens * topk * hidden * width
    run = jax.jit(forward)
    timing = measure(functools.partial(_wait_for, run, *args))
    yield {"name": f"{name}_forward", "flops": flops, "timing": timing, **common}
    timing = measure(functools.partial(_wait_for, step, *args))
    yield {"name": name, "flops": 3 * flops, "timing": timing, **common}

    @jax.jit
    def packed_step(packed: PackedExperts, x: jax.Array, weights: jax.Array, *w: jax.Array) -> Any:
        y, pullback = jax.vjp(functools.partial(forward, packed=packed), x, weights, *w)
        return y, pullback(y_grad)

    panels = jax.jit(pack_experts)(*experts_weights)
    common["max_error"] = _check(ids, args, y_grad, packed_step(panels, *args))
    timing = measure(functools.partial(_wait_for, packed_step, panels, *args))
    yield {"name": f"{name}_packed", "flops": 3 * flops, "timing": timing, **common}


def _wait_for(run: Callable[..., Any], *args: jax.Array) -> None:
    jax.block_until_ready(run(*args))


def _check(ids: np.ndarray, args: Any, y_grad: jax.Array, result: Any) -> float:
    """Largest error of y and of x's gradient on a few tokens, relative to their largest value."""
    chosen = np.linspace(0, ids.shape[0] - 1, _CHECKED_TOKENS).astype(int)
    used = np.unique(ids[chosen])
    slots = jnp.asarray(np.searchsorted(used, ids[chosen]), jnp.int32)
    x, weights, *experts = (jnp.asarray(a) for a in args)
    x, weights = x[chosen].astype(jnp.float32), weights[chosen]
    experts = [w[used].astype(jnp.float32) for w in experts]
    function = lambda x: reference.moe_ffn(x, slots, weights, *experts)  # noqa: E731
    y, pullback = jax.vjp(function, x)
    expected = (y, pullback(y_grad[chosen].astype(jnp.float32))[0])
    got = (result[0], result[1][0])
    worst = 0.0
    for have, want in zip(got, expected, strict=True):
        difference = jnp.abs(have[chosen].astype(jnp.float32) - want).max() / jnp.abs(want).max()
        worst = max(worst, float(difference))
    # Five roundings to bf16 lie on the way, each at most 2^-8 of the largest value.
    if not worst <= 5 * 2.0**-8:
        raise RuntimeError(f"bench: moe_ffn is wrong: relative error {worst:.3e}")
    return worst


def _ragged_dot_rows() -> Iterator[dict[str, Any]]:
    """``ab.ragged_dot`` beside ``jax.lax.ragged_dot`` on the same arrays."""
    groups, m, k, n = 64, 3072, 512, 256
    rng = np.random.default_rng(0)
    sizes = jnp.asarray(rng.multinomial(m, np.ones(groups) / groups), jnp.int32)
    for dtype in ("bfloat16", "float32"):
        lhs = jnp.asarray(rng.normal(size=(m, k)), dtype)
        rhs = jnp.asarray(rng.normal(size=(groups, k, n)), dtype)
        outputs, ours = [], {}
        for library, function in (("", ragged_dot), ("_jax_lax", jax.lax.ragged_dot)):
            forward = jax.jit(lambda l, r, f=function: f(l, r, sizes))  # noqa: E741
            gradient = jax.jit(
                jax.grad(lambda l, r, f=function: (f(l, r, sizes) ** 2).sum(), (0, 1))  # noqa: E741
            )
            outputs.append(forward(lhs, rhs).astype(jnp.float32))
            error = float(jnp.abs(outputs[-1] - outputs[0]).max() / jnp.abs(outputs[0]).max())
            for kind, run, products in (("forward", forward, 1), ("gradient", gradient, 3)):
                call = functools.partial(_wait_for, run, lhs, rhs)
                timing = measure(call, budget_seconds=1.0)
                ours.setdefault(kind, timing.seconds)
                yield {
                    "name": f"ragged_dot_{dtype}_{kind}{library}",
                    "shape": {"M": m, "K": k, "N": n, "E": groups},
                    "dtype": dtype,
                    "threads": engine.num_threads(),
                    "flops": 2.0 * products * m * k * n,
                    "max_error": error,
                    "times_ours": timing.seconds / ours[kind],
                    "timing": timing,
                }
