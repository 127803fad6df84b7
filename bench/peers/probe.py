# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What every worker measures alike: time of each step, losses, memory, and who else used the cores.

Only the standard library: it runs in every environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_job() -> dict[str, Any]:
    """Returns the job whose path is the first argument."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def write_result(result: dict[str, Any]) -> None:
    """Writes the result where the second argument says."""
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


class Probe:
    """Times steps one by one; the first `warmup` of them (compilation included) do not count."""

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._started = 0.0
        self._before = (0.0, 0.0)
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def step(self, run: Callable[[], float]) -> None:
        """Runs one step; `run` returns its loss when all its results exist."""
        if len(self.losses) == self._warmup:
            reset_peak_memory()
            self._before = _cpu_seconds()
            self._started = time.perf_counter()
        start = time.perf_counter()
        loss = run()
        elapsed = time.perf_counter() - start
        self.losses.append(float(loss))
        if len(self.losses) > self._warmup:
            self.seconds.append(elapsed)

    def result(self, packages: tuple[str, ...]) -> dict[str, Any]:
        """Summary: times, losses, bytes resident at the peak of the timed steps, cores others used."""
        after = _cpu_seconds()
        elapsed = time.perf_counter() - self._started
        others = (after[0] - self._before[0]) - (after[1] - self._before[1])
        if not all(math.isfinite(loss) for loss in self.losses):
            raise RuntimeError(f"a loss is not finite: {self.losses}")
        versions = {"python": platform.python_version()}
        versions |= {name: importlib.metadata.version(name) for name in packages}
        return {
            "step_seconds": self.seconds,
            "losses": self.losses,
            "peak_rss_bytes": peak_memory_bytes(),
            "busy_neighbour_cores": max(0.0, others / elapsed),
            "versions": versions,
        }


def reset_peak_memory() -> None:
    """Makes the kernel forget the peak so far, that of compilation for example."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_bytes() -> int:
    """Largest resident set since `reset_peak_memory`."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def _cpu_seconds() -> tuple[float, float]:
    """CPU seconds used by the whole machine, stolen time included, and by this process."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields]
    idle = ticks[3] + ticks[4]
    times = os.times()
    total = sum(ticks[:8]) - idle  # guest time is already inside user time
    return total / os.sysconf("SC_CLK_TCK"), times.user + times.system
