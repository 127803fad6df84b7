# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``step``: whole training steps of recipes, by the model's own count of operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from anabranch import engine, models, recipes
from anabranch.bench.timing import measure
from anabranch.train.step import init_state, make_train_step

_RECIPES = (("bench_190m", "bench-190m"), ("default", "default"))


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``bench_190m`` and ``default``: forward, gradient and optimizer on one random batch."""
    for name, recipe_name in _RECIPES:
        recipe = recipes.get(recipe_name)
        shape = (recipe.train.batch_size, recipe.train.sequence_length)
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, 256, shape, dtype=np.int32)
        batch = {
            "tokens": tokens,
            "labels": np.roll(tokens, -1, axis=1),
            "segment_ids": np.ones(shape, np.int32),
            "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
        }
        step = jax.jit(make_train_step(recipe), donate_argnums=0)
        carried = [init_state(jax.random.key(0), recipe)]
        losses: list[float] = []

        def run(step: Any, carried: list[Any], batch: Any, losses: list[float]) -> None:
            carried[0], metrics = step(carried[0], batch)
            losses.append(float(metrics.cross_entropy))

        arguments = (step, carried, batch, losses)
        timing = measure(functools.partial(run, *arguments), budget_seconds=6.0)
        # Learning one batch by heart must lower its loss from about ln V; the error is the excess.
        start = math.log(recipe.model.vocab_size)
        if not (abs(losses[0] - start) < 1 and losses[-1] < losses[0]):
            raise RuntimeError(f"bench: {recipe_name} does not learn: {losses[0]} to {losses[-1]}")
        tokens_per_step = shape[0] * shape[1]
        yield {
            "name": name,
            "shape": {"batch": shape[0], "sequence": shape[1]},
            "dtype": "bfloat16",
            "threads": engine.num_threads(),
            "flops": tokens_per_step * models.flops_per_token(recipe.model, shape[1]),
            "max_error": abs(losses[0] - start),
            "tokens_per_second": tokens_per_step / timing.seconds,
            "timing": timing,
        }
