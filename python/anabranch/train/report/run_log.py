# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Reads what a training run left behind: `config.json` and `metrics.jsonl`.

A run may have been killed in the middle of a line, resumed from an older checkpoint, or not have
reached its first step. None of that is an error here: what can be read is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]


def number(value: object) -> float:
    """Returns `value` as a float, and NaN for anything that is not one finite-size number."""
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.nan
    return math.nan


def whole_numbers(value: object) -> list[float]:
    """Returns a list of numbers; a list of lists counts as the lengths of its members."""
    if not isinstance(value, list):
        return []
    return [float(len(item)) if isinstance(item, list) else number(item) for item in value]


@dataclass
class RunLog:
    """One run, in the order of its steps; repeated steps of a resumed run appear once."""

    name: str
    config: Record = field(default_factory=dict)
    started: Record = field(default_factory=dict)
    finished: Record | None = None
    steps: list[Record] = field(default_factory=list)
    evals: list[Record] = field(default_factory=list)
    samples: list[Record] = field(default_factory=list)
    skipped: list[Record] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    resuming: bool = False

    def series(self, key: str) -> np.ndarray:
        """Returns the f64 [logged steps] values of `key`, NaN where a line has none."""
        return np.array([number(record.get(key)) for record in self.steps], np.float64)

    def layers(self, key: str) -> np.ndarray:
        """Returns the f64 [logged steps, MoE layers] values of a per-layer list."""
        rows = [whole_numbers(record.get(key)) for record in self.steps]
        width = max(map(len, rows), default=0)
        table = np.full((len(rows), width), math.nan)
        for row, values in zip(table, rows, strict=True):
            row[: len(values)] = values
        return table

    def last(self, key: str) -> float:
        """Returns the last finite value of `key`, or NaN."""
        values = self.series(key)
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if finite.size else math.nan

    def setting(self, *path: str) -> Any:  # noqa: ANN401
        """Returns the configured value at `path`, or None."""
        value: Any = self.config
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def total_steps(self) -> float:
        """Returns the number of steps that the run was asked for, or NaN."""
        for value in (self.started.get("total_steps"), self.started.get("steps")):
            if number(value) > 0:
                return number(value)
        return number(self.setting("train", "steps"))


def load(run_dir: Path) -> RunLog:
    """Reads the run folder; lines that cannot be read are counted in `warnings`."""
    log = RunLog(name=run_dir.resolve().name)
    log.config = _read_config(run_dir / "config.json", log.warnings)
    unreadable = 0
    for line in _lines(run_dir / "metrics.jsonl", log.warnings):
        record = _parse(line)
        if record is None:
            unreadable += 1
        else:
            _add(log, record)
    if unreadable:
        noun = "line" if unreadable == 1 else "lines"
        log.warnings.append(f"{unreadable} unreadable {noun} of metrics.jsonl left out")
    return log


def _read_config(path: Path, warnings: list[str]) -> Record:
    try:
        config = json.loads(path.read_text("utf-8", errors="replace"))
    except (OSError, ValueError):
        warnings.append("config.json is missing or unreadable")
        return {}
    return config if isinstance(config, dict) else {}


def _lines(path: Path, warnings: list[str]) -> list[str]:
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        warnings.append("metrics.jsonl is missing")
        return []
    return [line for line in text.split("\n") if line.strip("\0 \t\r")]


def _parse(line: str) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _add(log: RunLog, record: Record) -> None:
    event = record.get("event")
    lists = {"eval": log.evals, "sample": log.samples, "skipped": log.skipped}
    if event == "started":
        _start(log, record)
    elif event == "finished":
        log.finished = record
    elif isinstance(event, str) and event in lists:
        lists[event].append(record)
    elif event in (None, "step") and math.isfinite(number(record.get("step"))):
        _add_step(log, record)


def _start(log: RunLog, record: Record) -> None:
    log.resuming = bool(log.steps)
    log.started = {**log.started, **record}


def _add_step(log: RunLog, record: Record) -> None:
    step = number(record["step"])
    if log.steps and step <= number(log.steps[-1]["step"]):
        log.resuming = True
        _rewind(log, step)
    if log.resuming:
        log.resumed_at.append(int(step))
        log.resuming = False
    log.finished = None
    log.steps.append(record)


def _rewind(log: RunLog, step: float) -> None:
    """Drops what a killed run logged past the checkpoint from which it was resumed."""
    while log.steps and number(log.steps[-1]["step"]) >= step:
        log.steps.pop()
    for events in (log.evals, log.samples, log.skipped):
        events[:] = [record for record in events if number(record.get("step")) < step]
