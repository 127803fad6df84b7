# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them; a missing or non-finite number is a dash."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"
_SPACE = "\u202f"  # narrow, does not break
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def fixed(value: float, digits: int = 2) -> str:
    """Returns `value` with a fixed number of decimals and grouped thousands."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else MISSING


def grouped(value: float) -> str:
    """Returns a whole number with grouped thousands."""
    return fixed(value, 0)


def counted(value: float, noun: str) -> str:
    """Returns a whole number with its noun, such as `1 step` or `600 steps`."""
    return f"{grouped(value)} {noun}{'' if value == 1 else 's'}"


def with_unit(text: str, unit: str) -> str:
    """Returns a formatted number with its unit, or the dash alone."""
    return text if text == MISSING else f"{text}{_SPACE}{unit}"


def scaled(value: float, digits: int = 3) -> str:
    """Returns `value` to `digits` significant digits with k, M, B or T, such as 31.2 M."""
    if not math.isfinite(value):
        return MISSING
    for limit, suffix in _SUFFIXES:
        if abs(value) >= limit * (1 - 0.5 * 10.0**-digits):
            return f"{_significant(value / limit, digits)}{_SPACE}{suffix}"
    return _significant(value, digits)


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])  # after rounding
    decimals = max(0, digits - 1 - exponent)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if value == int(value) and decimals else text


def percent(fraction: float, digits: int = 1) -> str:
    """Returns a fraction as a percentage."""
    return f"{100 * fraction:.{digits}f}{_SPACE}%" if math.isfinite(fraction) else MISSING


def duration(seconds: float) -> str:
    """Returns seconds as `4.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if not math.isfinite(seconds) or seconds < 0:
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f}{_SPACE}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}{_SPACE}s"
    if whole < 3600:
        return f"{whole // 60}{_SPACE}min {whole % 60:02d}{_SPACE}s"
    return f"{whole // 3600}{_SPACE}h {whole % 3600 // 60:02d}{_SPACE}min"


def general(value: float) -> str:
    """Returns a number of any size in few characters: 0.25, 3e-4, 12,500."""
    if not math.isfinite(value):
        return MISSING
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def tick_labels(values: Sequence[float], percentage: bool = False) -> list[str]:
    """Returns labels for evenly spaced tick values, all with the same number of decimals."""
    if percentage:
        return [f"{label}{_SPACE}%" for label in tick_labels([100 * value for value in values])]
    top = max((abs(value) for value in values), default=0.0)
    for limit, suffix in _SUFFIXES:
        if top >= max(limit, 10_000):
            labels = tick_labels([value / limit for value in values])
            marked = zip(values, labels, strict=True)
            return [f"{label}{_SPACE}{suffix}" if value else "0" for value, label in marked]
    if 0 < top < 1e-2:
        return [general(value) if value else "0" for value in values]
    decimals = next(
        (d for d in range(6) if all(abs(v - round(v, d)) < 1e-9 * top for v in values)), 6
    )
    return [f"{value:,.{decimals}f}" for value in values]
