# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Changing and storing recipes: `--set` paths, and JSON."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Iterator
from typing import Any, get_type_hints

from anabranch.errors import UsageError
from anabranch.recipes.recipe import Recipe


def paths(config: Any, prefix: str = "") -> Iterator[tuple[str, type, Any]]:
    """Yields (path, type, value) of every plain field of a recipe or of one of its parts."""
    types = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from paths(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", types[field.name], value


def override(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Returns `recipe` with `settings` ("train.steps=20") applied, later ones winning.

    All settings are applied together, so their order does not matter to the checks. UsageError
    for an unknown path (listing the nearest ones), a value of the wrong type, or a value that breaks a
    rule of the configuration.
    """
    types = {path: kind for path, kind, _ in paths(recipe) if "." in path}
    changes: dict[str, Any] = {}
    for setting in settings:
        path, separator, text = setting.partition("=")
        path = path.strip()
        if not separator:
            raise UsageError(f"--set {setting}: must have the form path=value")
        if path not in types:
            raise UsageError(f"--set {path}: no such setting; nearest: {_nearest(path, types)}")
        changes[path] = _parse(path, types[path], text.strip())
    return _rebuild(recipe, changes)


def to_json(recipe: Recipe) -> str:
    """Returns the whole recipe as indented JSON, from which `from_json` restores it exactly."""
    return json.dumps(dataclasses.asdict(recipe), indent=2) + "\n"


def from_json(text: str) -> Recipe:
    """Returns the recipe that `to_json` wrote; fields that are missing keep their defaults.

    UsageError for text that is no JSON object, an unknown field or a value of the wrong type.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"recipe: not valid JSON ({error})") from error
    if not isinstance(data, dict) or "name" not in data:
        raise UsageError("recipe: must be a JSON object with a name")
    recipe = Recipe(name=str(data["name"]), description=str(data.get("description", "")))
    types = {path: kind for path, kind, _ in paths(recipe)}
    changes = {}
    for path, value in _flatten(data):
        if path not in types:
            raise UsageError(f"recipe: unknown field {path}; nearest: {_nearest(path, types)}")
        changes[path] = _coerce(path, types[path], value)
    return _rebuild(recipe, changes)


def _flatten(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _nearest(path: str, known: Iterable[str]) -> str:
    known = list(known)
    leaf = path.rsplit(".", 1)[-1]
    same_leaf = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    close = difflib.get_close_matches(path, known, n=4, cutoff=0.0)
    return ", ".join(list(dict.fromkeys(same_leaf + close))[:4])


def _parse(path: str, kind: type, text: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if text.lower() not in words:
            raise UsageError(f"--set {path}={text}: must be true or false")
        return words[text.lower()]
    try:
        return kind(text)
    except ValueError as error:
        name = {int: "an integer", float: "a number"}.get(kind, kind.__name__)
        raise UsageError(f"--set {path}={text}: must be {name}") from error


def _coerce(path: str, kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"recipe: {path}={value!r} must be of type {kind.__name__}")
    return value


def _rebuild(config: Any, changes: dict[str, Any], prefix: str = "") -> Any:
    """Replaces changed fields bottom-up: each dataclass is checked once, when complete."""
    values = {}
    for field in dataclasses.fields(config):
        path, value = f"{prefix}{field.name}", getattr(config, field.name)
        if path in changes:
            values[field.name] = changes[path]
        elif dataclasses.is_dataclass(value) and any(key.startswith(path + ".") for key in changes):
            values[field.name] = _rebuild(value, changes, path + ".")
    try:
        return dataclasses.replace(config, **values)
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from error
