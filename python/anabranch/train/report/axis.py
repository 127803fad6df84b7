# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""One axis of a chart: its range, its tick values, and where a value lies on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from anabranch.train.report import units


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic range, named with its unit; `low > high` runs backwards.

    `whole` puts ticks at whole numbers only.
    """

    low: float
    high: float
    label: str = ""
    log: bool = False
    percentage: bool = False
    whole: bool = False

    def place(self, values: np.ndarray) -> np.ndarray:
        """Returns positions, 0 at `low` and 1 at `high`; NaN stays NaN."""
        values = np.asarray(values, np.float64)
        if not self.log:
            return (values - self.low) / (self.high - self.low)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(values > 0, np.log10(values), np.nan)
        return (logs - math.log10(self.low)) / math.log10(self.high / self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns the position and the label of each tick."""
        low, high = min(self.low, self.high), max(self.low, self.high)
        values = _log_ticks(low, high) if self.log else _ticks(low, high)
        values = [v for v in values if not self.whole or v == round(v)]
        if self.log:
            labels = [units.percent(v, 0) if self.percentage else _short(v) for v in values]
        else:
            labels = units.tick_labels(values, self.percentage)
        return list(zip(self.place(np.array(values)).tolist(), labels, strict=True))


def fit(
    values: Iterable[np.ndarray],
    label: str,
    *,
    log: bool = False,
    percentage: bool = False,
    zero: bool = False,
    tight: bool = False,
) -> Axis:
    """Returns an axis around the finite values; `zero` includes 0.

    `tight` adds no margin below and little above. A rare spike does not flatten the rest: the
    range ends a little above the 98th percentile when the maximum is more than twenty times that.
    No values at all give the range 0 to 1.
    """
    parts = [np.ravel(np.asarray(part, np.float64)) for part in values]
    data = np.concatenate(parts) if parts else np.empty(0)
    data = data[np.isfinite(data) & (np.abs(data) < 1e300)]
    if log:
        data = data[data > 0]
        log = data.size > 0
    if not data.size:
        return Axis(0.0, 1.0, label, False, percentage)
    low, high = float(data.min()), float(data.max())
    bulk = float(np.percentile(data, 98))
    if not log and not tight and 0 < 20 * bulk < high:
        high = 1.5 * bulk
    if log:
        return _log_axis(low, high, label, percentage, tight)
    low = min(low, 0.0) if zero else low
    if high <= low:
        pad = abs(low) * 0.5 or 1.0
        low, high = (0.0, 2 * high) if zero and high > 0 else (low - pad, high + pad)
    else:
        margin = (0.02 if tight else 0.06) * (high - low)
        low, high = (low if tight or (zero and low == 0) else low - margin), high + margin
    return Axis(low, high, label, False, percentage)


def _log_axis(low: float, high: float, label: str, percentage: bool, tight: bool) -> Axis:
    if high <= low * 1.02:
        return Axis(low / 2, high * 2, label, True, percentage)
    margin = (high / low) ** (0.02 if tight else 0.06)
    return Axis(low if tight else low / margin, high * margin, label, True, percentage)


def _ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if raw <= power * factor * 1.001)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) if step > 1e-9 else i * step for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        values = [f * 10.0**d for d in decades for f in factors]
        values = [v for v in values if low * 0.999 <= v <= high * 1.001]
        if len(values) >= 3:
            return values[:: math.ceil(len(values) / 6)]
    return values


def _short(value: float) -> str:
    return units.scaled(value) if value >= 1000 else units.general(value)
