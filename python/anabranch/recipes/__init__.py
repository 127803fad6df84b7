# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Named recipes: every model and training run that ships with Anabranch.

Each recipe is a small module of this package that defines `recipe()`; its name is the module's with
hyphens. `get`, `names`, `override`, `to_json` and `from_json` are all a user needs.
"""

from __future__ import annotations

import difflib
import importlib

from anabranch.errors import UsageError
from anabranch.recipes.override import from_json, override, paths, to_json
from anabranch.recipes.recipe import (
    DataConfig,
    ParallelConfig,
    PrecisionConfig,
    Recipe,
    TrainConfig,
)

__all__ = [
    "DataConfig", "ParallelConfig", "PrecisionConfig", "Recipe", "TrainConfig",
    "from_json", "get", "names", "override", "paths", "to_json",
]  # fmt: skip

_NAMES = (
    "smoke",
    "default",
    "overnight",
    "bench-190m",
    "deepseek-v3-671b",
    "deepseek-v2-lite",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "olmoe-1b-7b",
    "kimi-k2",
)


def names() -> list[str]:
    """Returns the name of every recipe, trainable ones first."""
    return list(_NAMES)


def get(name: str) -> Recipe:
    """Returns the recipe called `name`; UsageError lists the nearest names if there is none."""
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=3, cutoff=0.4) or _NAMES
        raise UsageError(f"recipe {name!r}: no such recipe; nearest: {', '.join(near)}")
    module = importlib.import_module(f"anabranch.recipes.{name.replace('-', '_')}")
    return module.recipe()
