# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``step``: whole training steps of recipes, by the model's own count of operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from anabranch import engine, models, recipes
from anabranch.bench.timing import measure
from anabranch.train.machine import FreedMemory
from anabranch.train.step import init_state, jit_step, keep_gradients, make_train_step

_RECIPES = (("bench_190m", "bench-190m"), ("default", "default"))


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``bench_190m`` and ``default``: forward, gradient and optimizer on one random batch."""
    for name, recipe_name in _RECIPES:
        recipe = recipes.get(recipe_name)
        run, losses = prepare(recipe)
        timing = measure(run, budget_seconds=6.0)
        error = check(recipe, losses)
        tokens_per_step = recipe.train.batch_size * recipe.train.sequence_length
        yield {
            "name": name,
            "shape": shape_of(recipe),
            "dtype": "bfloat16",
            "threads": engine.num_threads(),
            "flops": flops(recipe),
            "max_error": error,
            "tokens_per_second": tokens_per_step / timing.seconds,
            "timing": timing,
        }


def shape_of(recipe: recipes.Recipe) -> dict[str, int]:
    """Sequences of a batch and their length."""
    return {"batch": recipe.train.batch_size, "sequence": recipe.train.sequence_length}


def flops(recipe: recipes.Recipe) -> float:
    """Operations of one step by the model's own count."""
    length = recipe.train.sequence_length
    return recipe.train.batch_size * length * models.flops_per_token(recipe.model, length)


def prepare(recipe: recipes.Recipe) -> tuple[Callable[[], None], list[float]]:
    """A call that takes one step on one random batch, and the losses that its calls append."""
    shape = (recipe.train.batch_size, recipe.train.sequence_length)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, shape, dtype=np.int32)
    batch = {
        "tokens": tokens,
        "labels": np.roll(tokens, -1, axis=1),
        "segment_ids": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
    }
    step = jit_step(make_train_step(recipe))
    carried: list[Any] = [keep_gradients(init_state(jax.random.key(0), recipe))]
    losses: list[float] = []
    freed = FreedMemory()

    def run() -> None:
        carried[0], metrics = step(carried[0], batch)
        losses.append(float(metrics.cross_entropy))
        freed.after_step()  # as the trainer does

    return run, losses


def check(recipe: recipes.Recipe, losses: list[float]) -> float:
    """How far the first loss is from ln V; RuntimeError unless it is near and the last one lower."""
    # Learning one batch by heart must lower its loss from about ln V; the error is the excess.
    start = math.log(recipe.model.vocab_size)
    if not (abs(losses[0] - start) < 1 and losses[-1] < losses[0]):
        raise RuntimeError(f"bench: {recipe.name} does not learn: {losses[0]} to {losses[-1]}")
    return abs(losses[0] - start)
