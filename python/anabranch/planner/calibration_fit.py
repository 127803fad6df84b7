# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Fits few efficiencies of one hardware and software stack to measured steps.

Everything physical is pinned by data sheets and kernel tables in the hardware files. What is fitted
are three factors, each held near 1 by a prior, so that one row moves them no further than it must.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from anabranch.planner import calibration, calibration_rows
from anabranch.planner.calibration_rows import Row

# Factor -> the constants it multiplies, its spread (of the logarithm) and bounds. Products: what a
# stack's libraries reach of the table; elementwise_passes: how well it fuses; host: what it launches.
FACTORS: dict[str, tuple[tuple[str, ...], float, float, float]] = {
    "products": (("gemm_efficiency", "gemm_low_efficiency"), 0.2, 0.6, 1.3),
    "passes": (("elementwise_passes",), 0.4, 0.5, 4.0),
    "host": (("layer_host_us",), 0.7, 0.1, 10.0),
}
# A published step time repeats within about 3 %: releases of one month, runs of one table.
_NOISE = 0.03
_ROUNDS = 3


def fit(rows: Sequence[Row]) -> list[calibration.Fit]:
    """One fit per (hw, stack) among `rows` that are not held out; deterministic.

    Minimises the squared errors of the steps' logarithms over the noise, plus the squared logarithms of
    the factors over their spreads, by golden-section search along one factor after the other.
    """
    held_out = calibration_rows.held_out()
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.id not in held_out:
            groups.setdefault((row.hw, row.stack), []).append(row)
    return [_fit_group(hw, stack, group) for (hw, stack), group in sorted(groups.items())]


def _fit_group(hw: str, stack: str, rows: Sequence[Row]) -> calibration.Fit:
    logs = dict.fromkeys(FACTORS, 0.0)

    def loss(name: str, value: float) -> float:
        tried = {**logs, name: value}
        factors = constants({n: math.exp(v) for n, v in tried.items()})
        values = calibration.parameters(hw, factors)
        total = sum((v / FACTORS[n][1]) ** 2 for n, v in tried.items())
        for row in rows:
            score = calibration_rows.score(row, values)
            if score.step_error is not None:
                total += (math.log1p(score.step_error) / _NOISE) ** 2
        return total

    for _ in range(_ROUNDS):
        before = dict(logs)
        for name, (_, _, low, high) in FACTORS.items():
            logs[name] = _search(lambda v, n=name: loss(n, v), math.log(low), math.log(high))
        if all(abs(logs[name] - before[name]) < 0.01 for name in FACTORS):
            break
    factors = {name: round(math.exp(value), 3) for name, value in logs.items()}
    return calibration.Fit(hw, stack, constants(factors), tuple(row.id for row in rows))


def constants(factors: Mapping[str, float]) -> dict[str, float]:
    """Factors on the hardware file's constants."""
    return {c: factor for name, factor in factors.items() for c in FACTORS[name][0]}


def _search(loss: Callable[[float], float], low: float, high: float) -> float:
    golden = (math.sqrt(5) - 1) / 2
    a, b = low, high
    c, d = b - golden * (b - a), a + golden * (b - a)
    loss_c, loss_d = loss(c), loss(d)
    while b - a > 0.02:
        if loss_c <= loss_d:
            b, d, loss_d = d, c, loss_c
            c = b - golden * (b - a)
            loss_c = loss(c)
        else:
            a, c, loss_c = c, d, loss_d
            d = a + golden * (b - a)
            loss_d = loss(d)
    return (a + b) / 2
