# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The expert layer and the training step under each recipe, timed in turn with the same in bf16."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import engine, recipes
from anabranch.bench import step
from anabranch.bench.timing import measure_in_turn
from anabranch.ops.moe_ffn import moe_ffn
from anabranch.ops.router import Routing

# 192 rows an expert, with the sizes of the layer suite's and an eighth of its experts.
_TOKENS, _HIDDEN, _WIDTH, _EXPERTS, _TOPK = 256, 2048, 1408, 8, 6
_LAYER_RECIPES = ("bf16", "mxfp8", "fp8_block", "nvfp4")
# Of y, relative to its norm: three products with errors as in arXiv 2506.08027 and 2509.25149.
_MOST_ERROR = {"bf16": 0.0, "mxfp8": 0.1, "fp8_block": 0.1, "nvfp4": 0.35}
_STEP_RECIPES = ("bf16", "mxfp8", "nvfp4")


def layer_rows() -> Iterator[dict[str, Any]]:
    """Rows ``moe_ffn_192_rows_*``: forward and gradient; ``of_bf16`` is their speed as a share of bf16's."""
    rng = np.random.default_rng(0)
    draws = jnp.asarray(rng.normal(size=1 << 16) * _HIDDEN**-0.5, jnp.bfloat16)

    def weight(shift: int, *shape: int) -> jax.Array:
        return jnp.resize(jnp.roll(draws, shift)[: (1 << 16) - 1], shape)  # odd period: no pattern

    x, y_grad = (jnp.asarray(rng.normal(size=(_TOKENS, _HIDDEN)), jnp.bfloat16) for _ in range(2))
    ids = np.argsort(rng.random((_TOKENS, _EXPERTS)), axis=1)[:, :_TOPK].astype(np.int32)
    args = (
        x,
        jnp.asarray(rng.dirichlet(np.ones(_TOPK), _TOKENS), jnp.float32),
        weight(1, _EXPERTS, _HIDDEN, _WIDTH),
        weight(2, _EXPERTS, _HIDDEN, _WIDTH),
        weight(3, _EXPERTS, _WIDTH, _HIDDEN),
    )
    experts = jnp.asarray(ids)

    @functools.partial(jax.jit, static_argnums=0)
    def run(recipe: str, *args: jax.Array) -> Any:
        def forward(x: jax.Array, weights: jax.Array, *w: jax.Array) -> jax.Array:
            return moe_ffn(x, Routing(experts, weights, None), *w, recipe=recipe)

        y, pullback = jax.vjp(forward, *args)
        return y, pullback(y_grad)

    exact = run("bf16", *args)[0].astype(jnp.float32)
    calls: list[Callable[[], Any]] = []
    errors = {}
    for recipe in _LAYER_RECIPES:
        error = jnp.linalg.norm(run(recipe, *args)[0].astype(jnp.float32) - exact)
        errors[recipe] = float(error / jnp.linalg.norm(exact))
        if not errors[recipe] <= _MOST_ERROR[recipe]:
            raise RuntimeError(
                f"bench: moe_ffn under {recipe} is wrong: error {errors[recipe]:.3e}"
            )
        calls.append(lambda r=recipe: jax.block_until_ready(run(r, *args)))
    timings = measure_in_turn(calls, rounds=5)
    for recipe, timing in zip(_LAYER_RECIPES, timings, strict=True):
        yield {
            "name": f"moe_ffn_192_rows_{recipe}",
            "shape": {"T": _TOKENS, "H": _HIDDEN, "F": _WIDTH, "E": _EXPERTS, "k": _TOPK},
            "dtype": "bfloat16",
            "threads": engine.num_threads(),
            "flops": 18.0 * _TOKENS * _TOPK * _HIDDEN * _WIDTH,
            "max_error": errors[recipe],
            "of_bf16": timings[0].seconds / timing.seconds,
            "timing": timing,
        }


def step_rows() -> Iterator[dict[str, Any]]:
    """Rows ``default_step_*``: a step of the recipe `default`; ``times_bf16`` is its time over bf16's."""
    runs, checks = [], []
    for name in _STEP_RECIPES:
        recipe = recipes.override(recipes.get("default"), [f"precision.recipe={name}"])
        run, losses = step.prepare(recipe)
        runs.append(run)
        checks.append(functools.partial(step.check, recipe, losses))
    timings = measure_in_turn(runs, rounds=7)
    for name, timing, check in zip(_STEP_RECIPES, timings, checks, strict=True):
        recipe = recipes.get("default")
        yield {
            "name": f"default_step_{name}",
            "shape": step.shape_of(recipe),
            "dtype": "bfloat16",
            "threads": engine.num_threads(),
            "flops": step.flops(recipe),
            "max_error": check(),
            "times_bf16": timing.seconds / timings[0].seconds,
            "timing": timing,
        }
