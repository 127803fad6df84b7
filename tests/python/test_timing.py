# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Benchmarks notice a busy neighbour, and do not take their own work for one."""

import subprocess
import sys
import time

import pytest

from anabranch.bench import suite, timing


def test_a_spinning_neighbour_is_seen():
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        observed = timing.observe(lambda: [time.sleep(0.5) or 0.5] * 2)
    finally:
        neighbour.kill()
        neighbour.wait()
    # Alone it takes a whole core; on a crowded machine at least a share far above the limit.
    assert observed.busy_cores > 2 * timing.BUSY_SHARE


def test_only_what_others_use_counts(monkeypatch):
    # The machine used 3.0 s of processor time meanwhile, this process 2.9 s of them.
    readings = iter([(10.0, 1.0), (13.0, 3.9)])
    monkeypatch.setattr(timing, "_cpu_seconds", lambda: next(readings))
    clock = iter([0.0, 2.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert timing.observe(lambda: [1.0, 1.0]).busy_cores == pytest.approx(0.05)


def test_median_and_quartiles():
    observed = timing.observe(lambda: [1.0, 2.0, 3.0, 4.0, 100.0])
    assert observed.seconds == 3.0
    assert observed.spread == pytest.approx((52.0 - 1.5) / 3.0)


@pytest.mark.parametrize(("busy", "idle"), [(0.0, True), (0.04, True), (0.06, False), (1.0, False)])
def test_a_row_says_when_the_machine_was_not_idle(busy, idle):
    row = {"name": "r", "threads": 1, "dtype": "float32", "flops": 1e9, "max_error": 0.0}
    limits = {"peak_bf16_gflops": 4.0, "peak_f32_gflops": 2.0, "copy_gb_per_s": 1.0}
    row |= suite._finish(row, timing.Timing(1.0, 0.0, busy), limits, "again")
    assert row["idle"] == idle
    assert ("not idle" in suite._row_line(row)) == (not idle)


@pytest.mark.parametrize(("named", "share"), [({}, 2.0), ({"copy_seconds": 1.0}, 0.5)])
def test_a_row_of_copied_bytes_is_a_share_of_the_copy_that_was_timed_with_it(named, share):
    row = {"name": "r", "copied_bytes": 4e9, "max_error": 0.0, **named}
    done = suite._finish(row, timing.Timing(2.0, 0.0, 0.0), {"copy_gb_per_s": 1.0}, "again")
    assert done["share_of_copy"] == share
