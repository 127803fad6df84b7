# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Plots of the planner's answers, by matplotlib where it is installed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.errors import UsageError

_TIME = ("compute", "bubble", "ep", "tp", "dp", "pp", "offload")
_COLOURS = ("#33658a", "#c9c9c9", "#e07a5f", "#f2cc8f", "#81b29a", "#8e6c8a", "#6d6875")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("plots need matplotlib: pip install 'anabranch[plots]'") from error
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "anabranch"  # the same answer gives the same file
    from matplotlib import pyplot

    return pyplot


def time_shares(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Any:
    """Where each step's seconds go, one bar each. Returns a matplotlib figure."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(results) + 1.6))
    left = [0.0] * len(results)
    for part, colour in zip(_TIME, _COLOURS, strict=True):
        values = [_seconds(result, part) for result in results]
        if max(values) > 0:
            axes.barh(range(len(results)), values, left=left, color=colour, label=part)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_yticks(range(len(results)), names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds of a step (mean over pipeline stages), simulated")
    axes.legend(ncols=4, fontsize="small", frameon=False, loc="upper center",
                bbox_to_anchor=(0.5, -0.25 if len(results) > 3 else -0.45))  # fmt: skip
    figure.tight_layout()
    return figure


def memory(result: Mapping[str, Any]) -> Any:
    """The memory of each stage's busiest rank at its peak. Returns a matplotlib figure."""
    pyplot = _pyplot()
    stages = result["memory"]
    parts = ("weights", "gradients", "optimizer", "gathered", "dispatch", "communication",
             "workspace")  # fmt: skip
    series = {part: [stage[part] for stage in stages] for part in parts}
    for part in stages[0]["activations"]:
        series[part.replace("_", " ")] = [stage["activations"][part] for stage in stages]
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    colours = pyplot.get_cmap("tab20").colors
    bottom = [0.0] * len(stages)
    for i, (name, values) in enumerate(series.items()):
        if max(values) < 0.01:
            continue
        axes.bar(range(len(stages)), values, bottom=bottom, color=colours[i % 20], label=name)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    axes.axhline(result["memory_gib_needed"] + result["headroom_gib"], color="black", ls="--")
    axes.set_xticks(range(len(stages)))
    axes.set_xlabel("pipeline stage")
    axes.set_ylabel("GiB at the peak, simulated")
    axes.legend(fontsize="x-small", frameon=False, bbox_to_anchor=(1.0, 1.0), loc="upper left")
    figure.tight_layout()
    return figure


def scaling(answer: Mapping[str, Any]) -> Any:
    """Efficiency against the number of accelerators. Returns a matplotlib figure."""
    pyplot = _pyplot()
    rows = answer["rows"]
    base = rows[0]["tokens_per_second_per_gpu"]
    sizes = [row["count"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(7, 3.6))
    axes.plot(sizes, [row["efficiency"] for row in rows], marker="o", label="batch grows")
    axes.fill_between(sizes, [row["slowest"] / base for row in rows],
                      [row["fastest"] / base for row in rows], alpha=0.2)  # fmt: skip
    fixed = [row for row in rows if row["fixed_batch"] is not None]
    if len(fixed) > 1:
        axes.plot([row["count"] for row in fixed],
                  [row["fixed_batch_efficiency"] for row in fixed],
                  marker="s", ls="--", label="batch stays")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    # Differences of a percent decide, and the axis begins at zero: the points carry their values.
    for row in rows:
        axes.annotate(f"{row['efficiency']:.1%}", (row["count"], row["efficiency"]), ha="center",
                      xytext=(0, 7), textcoords="offset points", fontsize="small")  # fmt: skip
    axes.set_ylim(0, 1.15 * max(row["efficiency"] for row in rows))
    axes.set_xlabel("accelerators")
    axes.set_ylabel(f"efficiency ({sizes[0]} = 1), simulated")
    axes.legend(frameon=False, loc="lower left")
    figure.tight_layout()
    return figure


def svg(figure: Any) -> str:
    """The figure as an SVG element."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    _pyplot().close(figure)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def save(figure: Any, path: Path) -> None:
    """Writes PNG or SVG, by the name's ending."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"--plot {path}: must end in .png or .svg")
    stamp = {"Date": None} if path.suffix.lower() == ".svg" else {}
    figure.savefig(path, dpi=150, metadata=stamp)
    _pyplot().close(figure)


def _seconds(result: Mapping[str, Any], part: str) -> float:
    if part == "compute":
        return result["compute_seconds"]
    if part == "bubble":
        return result["bubble_share"] * result["step_seconds"]
    return result["exposed"][part]
