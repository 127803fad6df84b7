# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Run folders: where they lie, what recipe they hold, and the newest weights in them."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch import recipes
from anabranch.errors import RunError, UsageError
from anabranch.recipes.recipe import Recipe

ROOT = Path("runs")
CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
_MARKS = (CONFIG, "metrics.jsonl", CHECKPOINTS)


def new(recipe_name: str) -> Path:
    """A folder name under `runs/` that nobody uses yet: `<recipe>-<local time>`."""
    stem = f"{recipe_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, count = ROOT / stem, 1
    while path.exists():
        count += 1
        path = ROOT / f"{stem}-{count}"
    return path


def holds_run(folder: Path) -> bool:
    """Whether a run has left anything in `folder`."""
    return any((folder / mark).exists() for mark in _MARKS)


def newest(recipe_name: str | None = None) -> Path:
    """The run under `runs/` that was written to last, of any recipe or of one; UsageError if there is none."""
    runs = [path.parent for path in ROOT.glob(f"*/{CONFIG}")]
    if recipe_name is not None:
        runs = [run for run in runs if read_recipe(run).name == recipe_name]
    if not runs:
        of_recipe = f" of recipe {recipe_name}" if recipe_name else ""
        raise UsageError(f"no run{of_recipe} under {ROOT}/ to resume; name one with --out DIR")
    return max(runs, key=_last_written)


def _last_written(run: Path) -> float:
    return max((run / mark).stat().st_mtime for mark in _MARKS if (run / mark).exists())


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a run; UsageError when `folder` is no run folder."""
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} is not a run folder: {CONFIG}: {error.strerror}") from error
    return recipes.from_json(text)


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Writes `config.json`, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{CONFIG}.writing"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(recipes.to_json(recipe))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / CONFIG)


def load_params(folder: Path, recipe: Recipe, warn: Callable[[str], None]) -> tuple[Any, int]:
    """Parameters and step of the newest good checkpoint of a run; RunError when it has none."""
    import jax

    from anabranch import models
    from anabranch.train import checkpoint

    found = checkpoint.newest_good(folder / CHECKPOINTS, warn)
    if found is None:
        raise RunError(f"{folder} has no usable checkpoint")
    template = jax.eval_shape(lambda key: models.init(key, recipe.model), jax.random.key(0))
    try:
        return checkpoint.restore(template, found.tensors("params")), found.step
    except checkpoint.CheckpointError as error:
        raise RunError(f"{found.path} does not fit {folder / CONFIG}: {error}") from error
