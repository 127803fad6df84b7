# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""How far a run has come and what there is to say about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


class State:
    """Where the run is, and how long the rest will take."""

    def __init__(self, total_steps: int, clock: Callable[[], float]) -> None:
        self.total_steps, self.clock = total_steps, clock
        self.phase, self.phase_began = "", 0.0
        self.metrics: Mapping[str, Any] = {}
        self._first: tuple[int, float] | None = None
        self._step_seconds = math.nan

    @property
    def step(self) -> int:
        """The last step shown, 0 before the first."""
        value = _number(self.metrics.get("step"))
        return int(value) if math.isfinite(value) else 0

    def waited(self) -> float:
        """Returns the seconds since the phase began."""
        return self.clock() - self.phase_began

    def advance(self, metrics: Mapping[str, Any]) -> None:
        """Takes in a step; the time of a step is the mean since the first, pauses included."""
        self.metrics = metrics
        if self._first is None:
            self._first = (self.step, self.clock())
            self._step_seconds = _number(metrics.get("step_seconds"))
        elif self.step > self._first[0]:
            passed = self.clock() - self._first[1]
            self._step_seconds = passed / (self.step - self._first[0])

    def seconds_left(self) -> float:
        """Returns the seconds to the last step, NaN when unknown."""
        return self._step_seconds * max(0, self.total_steps - self.step)

    def facts(self) -> list[tuple[str, str]]:
        """Returns name and value of what there is to show."""
        metrics = self.metrics
        skipped = _number(metrics.get("skipped_steps"))
        facts = [
            ("loss", _shown(metrics, "loss", "{:.3f}")),
            ("bits/byte", _shown(metrics, "bits_per_byte", "{:.3f}")),
            ("tokens/s", _shown(metrics, "tokens_per_second", "{:,.0f}")),
            ("MFU", _shown(metrics, "mfu", "{:.1%}")),
            ("skipped", f"{skipped:.0f}" if skipped > 0 else ""),
            ("left", clock_text(self.seconds_left()) if self.step < self.total_steps else ""),
        ]
        return [(name, value) for name, value in facts if value]


def _number(value: object) -> float:
    """Returns a number as a float, and anything else as NaN."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def _shown(metrics: Mapping[str, Any], key: str, pattern: str) -> str:
    if key not in metrics:
        return ""
    value = _number(metrics[key])
    return pattern.format(value) if math.isfinite(value) else "not finite"


def clock_text(seconds: float) -> str:
    """Returns `0:07`, `12:30` or `3:05:00`, or nothing when the time is unknown."""
    if not math.isfinite(seconds):
        return ""
    whole = max(0, round(seconds))
    minutes, hours = whole // 60 % 60, whole // 3600
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"
