# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The command that repeats a run."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from anabranch.train.report.markup import flatten
from anabranch.train.report.run_log import RunLog, number


def command(log: RunLog, recipe: str) -> str:
    """Returns a shell command; settings that differ from the named recipe become `--set`."""
    stated = log.started.get("command") or log.setting("command")
    if isinstance(stated, list):
        return shlex.join(map(str, stated))
    if stated:
        return str(stated)
    words = ["anabranch", "train", recipe]
    for path, value in _differences(log.config, _recipe_settings(recipe)):
        words += ["--set", f"{path}={_literal(value)}"]
    if math.isfinite(log.total_steps()) and "train.steps" not in " ".join(words):
        words += ["--steps", f"{log.total_steps():.0f}"]
    return shlex.join(words)


def _recipe_settings(recipe: str) -> Mapping[str, Any] | None:
    try:
        from anabranch import recipes

        settings = recipes.to_json(recipes.get(recipe))
        return json.loads(settings) if isinstance(settings, str) else settings
    except Exception:  # noqa: BLE001  a report never fails for want of the recipe
        return None


def _differences(
    config: Mapping[str, Any], base: Mapping[str, Any] | None
) -> list[tuple[str, object]]:
    if base is None:
        return []
    known = dict(flatten(base))
    return [
        (path, value)
        for path, value in flatten(config)
        if path in known and "." in path and known[path] != value
    ]


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and number(value) == value:
        return f"{value:.12g}"
    return str(value)
