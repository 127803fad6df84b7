# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Runs a suite: yardsticks, rows, and whether the machine was idle."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from typing import Any

import jax

from anabranch import engine
from anabranch.bench import ep, layer, quantize, sim, step, tile
from anabranch.bench.timing import BUSY_SHARE, Timing
from anabranch.errors import UsageError
from anabranch.train import machine

SUITES: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "tile": tile.rows,
    "layer": layer.rows,
    "step": step.rows,
    "ep": ep.rows,
    "quantize": quantize.rows,
    "sim": sim.rows,
}


def run(name: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Measures every row of a suite.

    Args:
      name: a key of ``SUITES``.
      report: called with each line of the table as it is measured.

    Returns:
      ``machine``, ``yardsticks`` (GFLOP/s and GB/s, measured first and again last; the larger
      counts, because a neighbour only ever lowers them) and ``rows``.

    Raises:
      UsageError: no such suite.
    """
    if name not in SUITES:
        raise UsageError(f"bench: no suite {name!r}; there are {', '.join(SUITES)}")
    yardsticks = _yardsticks()
    report(_yardstick_line(yardsticks))
    report(f"{'row':24} {'ms':>9} {'spread':>7} {'GFLOP/s':>8} {'of limit':>8} {'max error':>10}")
    rows = []
    for row in SUITES[name]():
        timing: Timing = row.pop("timing")
        again = _yardsticks()
        yardsticks = {key: max(yardsticks[key], again[key]) for key in yardsticks}
        row |= _finish(row, timing, yardsticks, f"anabranch bench {name}")
        rows.append(row)
        report(_row_line(row))
    return {"machine": _machine(), "yardsticks": yardsticks, "rows": rows}


def _yardsticks() -> dict[str, float]:
    return {
        "peak_bf16_gflops": engine.measure_peak_gflops("bfloat16"),
        "peak_f32_gflops": engine.measure_peak_gflops("float32"),
        "copy_gb_per_s": engine.measure_copy_gb_per_s(),
        "stream_gb_per_s": engine.measure_stream_gb_per_s(),
    }


def _finish(
    row: dict[str, Any], timing: Timing, yardsticks: dict[str, float], repeat: str
) -> dict[str, Any]:
    if "budget_seconds" in row:
        share = {"share_of_budget": timing.seconds / row["budget_seconds"]}
    elif "copy_seconds" in row:
        share = {"share_of_copy": row["copy_seconds"] / timing.seconds}
    elif "copied_bytes" in row:
        copied = row["copied_bytes"] / timing.seconds * 1e-9
        share = {"share_of_copy": copied / yardsticks["copy_gb_per_s"]}
    else:
        share = _share_of_peak(row, timing, yardsticks)
    return {
        "isa": engine.isa(),
        "seconds": timing.seconds,
        "spread": timing.spread,
        **share,
        "busy_neighbour_cores": timing.busy_cores,
        "idle": timing.busy_cores < BUSY_SHARE,
        "repeat": repeat,
    }


def _share_of_peak(
    row: dict[str, Any], timing: Timing, yardsticks: dict[str, float]
) -> dict[str, float]:
    gflops = row.pop("flops") / timing.seconds * 1e-9
    # Several threads share the peak of all; one thread has its part of it.
    threads = row["threads"]
    peak = yardsticks["peak_bf16_gflops" if row["dtype"] == "bfloat16" else "peak_f32_gflops"]
    return {
        "gflops": gflops,
        "share_of_peak": gflops / (peak * threads / engine.num_threads()),
    }


def _machine() -> dict[str, Any]:
    return {
        "cpu": machine.cpu_model(),
        "threads": engine.num_threads(),
        "memory_gib": round(machine.memory_gib(), 1),
        "isa": engine.isa(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "anabranch": machine.package_version(),
    }


def _yardstick_line(yardsticks: dict[str, float]) -> str:
    return (
        f"yardsticks: bf16 {yardsticks['peak_bf16_gflops']:.0f} GFLOP/s, "
        f"f32 {yardsticks['peak_f32_gflops']:.0f} GFLOP/s, "
        f"copy {yardsticks['copy_gb_per_s']:.1f} GB/s, past the caches "
        f"{yardsticks['stream_gb_per_s']:.1f} GB/s on {engine.num_threads()} threads"
    )


def _row_line(row: dict[str, Any]) -> str:
    share = next(row[key] for key in row if key.startswith("share_of_"))
    line = (
        f"{row['name']:24} {row['seconds'] * 1e3:9.2f} {row['spread']:7.1%} "
        f"{row.get('gflops', 0.0):8.1f} {share:8.3f} {row['max_error']:10.2e}"
    )
    if not row["idle"]:
        line += f"  (not idle: others used {row['busy_neighbour_cores']:.2f} cores)"
    return line
