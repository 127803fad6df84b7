# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Repeated timing with spread, and whether somebody else was using the cores meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

MIN_REPEATS = 7
BUSY_SHARE = 0.05  # of one core, used by others: a neighbour on a core halves what two cores do


class Timing(NamedTuple):
    """Median seconds; spread = (third - first quartile) / median; cores others used meanwhile."""

    seconds: float
    spread: float
    busy_cores: float


def measure(run: Callable[[], object], *, budget_seconds: float = 4.0) -> Timing:
    """Times ``run`` at least ``MIN_REPEATS`` times, after one warm-up, for about a budget."""
    run()
    return observe(lambda: _repeat(run, budget_seconds))


def measure_in_turn(runs: Sequence[Callable[[], object]], *, rounds: int) -> list[Timing]:
    """Times each of ``runs`` once a round, after a warm-up of each: what disturbs one disturbs all."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]

    def all_rounds() -> list[float]:
        for _ in range(rounds):
            for run, durations in zip(runs, seconds, strict=True):
                durations.append(_once(run))
        return seconds[0]

    busy = observe(all_rounds).busy_cores
    return [Timing(*summary(durations), busy) for durations in seconds]


def observe(run: Callable[[], list[float]]) -> Timing:
    """Summarises the durations that ``run`` returns, and watches other processes meanwhile."""
    before = _cpu_seconds()
    start = time.perf_counter()
    seconds = run()
    elapsed = time.perf_counter() - start
    after = _cpu_seconds()
    others = (after[0] - before[0]) - (after[1] - before[1])
    return Timing(*summary(seconds), max(0.0, others / elapsed))


def summary(seconds: list[float]) -> tuple[float, float]:
    """Median, and spread as in ``Timing``."""
    low, _, high = statistics.quantiles(seconds, n=4)
    median = statistics.median(seconds)
    return median, (high - low) / median


def _repeat(run: Callable[[], object], budget_seconds: float) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < MIN_REPEATS or sum(seconds) < budget_seconds:
        seconds.append(_once(run))
    return seconds


def _once(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _cpu_seconds() -> tuple[float, float]:
    """CPU seconds used by the whole machine (stolen time included), and by this process.

    Children count as this process once they have ended.
    """
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields]
    idle = ticks[3] + ticks[4]
    total = sum(ticks[:8])  # guest time is already inside user time
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return (total - idle) / os.sysconf("SC_CLK_TCK"), own
