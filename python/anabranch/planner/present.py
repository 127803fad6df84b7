# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The planner's answers as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anabranch.planner.scenario import Scenario

_ACTIVATIONS = {
    "residual": "block inputs",
    "norm": "norm outputs",
    "latent": "queries, keys, values",
    "attention": "attention output",
    "dense_ffn": "dense feed-forward",
    "shared_expert": "shared expert",
    "router": "router",
    "expert_input": "expert rows in",
    "expert_hidden": "expert gate and up",
    "expert_activation": "expert activation",
}
_PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "gathered": "gathered parameters",
    "dispatch": "dispatch buffers",
    "communication": "pipeline buffers",
    "workspace": "workspace, logits",
}


def header(scenario: Scenario, result: Mapping[str, Any]) -> str:
    """What was asked, at which peaks, and how far the answer can be trusted."""
    peaks = result["peaks"]
    return "\n".join(
        (
            f"{result['model']} {result['recipe']} on {result['hardware']}"
            f" ({scenario.hardware.description})",
            f"batch {result['batch']:,} x {result['sequence']:,} tokens, routing {result['imbalance']}"
            f", {result['flops_per_token'] / 1e9:.2f} GFLOP/token",
            f"peaks: {number(peaks['bf16_tflops'])} TFLOP/s bf16, {number(peaks['native_tflops'])} native;"
            f" {trust(result['calibration'])}",
        )
    )


def trust(calibration: Mapping[str, Any]) -> str:
    """The calibration's name and its error on rows it has not seen."""
    if calibration["held_out_mape"] is None:
        return f"calibration {calibration['id']}: no row held out, error unknown"
    return (
        f"calibration {calibration['id']}: {calibration['held_out_mape']:.1%} mean,"
        f" {calibration['held_out_max']:.1%} largest error on"
        f" {calibration['held_out_rows']} held-out rows"
    )


def placement(result: Mapping[str, Any]) -> str:
    """The layout in words."""
    return (
        f"{result['layout']}, dp {result['data_parallel']:.0f}"
        f", {result['microbatches']:.0f} microbatches"
        f", overlap {'on' if result['layout_full']['overlap'] else 'off'}"
        f", recompute {result['layout_full']['recompute'] or 'none'}"
    )


def step(result: Mapping[str, Any]) -> str:
    """Where one step's time goes."""
    total = result["step_seconds"]
    rows = [
        ("layout", placement(result)),
        ("step", f"{total:.3f} s"),
        ("tokens/s/GPU", f"{result['tokens_per_second_per_gpu']:,.0f}{band(result)}"),
        ("TFLOP/s/GPU", f"{number(result['tflops_per_gpu'])}   MFU {result['mfu']:.1%} of bf16"
                        f", {result['mfu_native']:.1%} of native (causal, no recompute)"),
        ("compute", share(result["compute_seconds"], total)),
        ("  recompute", share(result["recompute_seconds"], total)),
        ("  hot experts", share(result["imbalance_seconds"], total)),
        ("  optimizer", share(result["optimizer_seconds"], total)),
        ("bubble", share(result["bubble_share"] * total, total)),
        *((f"exposed {name}", share(value, total)) for name, value in result["exposed"].items()),
        ("binding", f"{result['binding_constraint']}; next: {result['next_knob']}"),
    ]  # fmt: skip
    return columns(rows)


def memory(result: Mapping[str, Any]) -> str:
    """The memory waterfall of every pipeline stage's busiest rank, in GiB at its peak."""
    stages = result["memory"]
    shown = stages if len(stages) <= 4 else _extremes(stages)
    names = [f"stage {stages.index(stage)}" for stage in shown]
    lines = [["memory, GiB", *names]]
    for key, name in _PARTS.items():
        lines.append([name, *(_gib(stage[key]) for stage in shown)])
    for key, name in _ACTIVATIONS.items():
        lines.append([f"  {name}", *(_gib(stage["activations"][key]) for stage in shown)])
    lines.append(["allocated at peak", *(_gib(stage["total"]) for stage in shown)])
    lines.append(["  at second", *(f"{stage['peak_seconds']:.3f}" for stage in shown)])
    text = grid(line for line in lines if set(line[1:]) != {"-"})
    return f"{text}\n{verdict(result)}"


def verdict(result: Mapping[str, Any]) -> str:
    """One line: fits or not, and under which imbalance."""
    capacity = result["memory_gib_needed"] + result["headroom_gib"]
    said = "fits" if result["fits"] else "does not fit"
    line = (
        f"{said}: {result['memory_gib_needed']:.1f} GiB needed with slack and libraries"
        f" of {capacity:.1f}, headroom {result['headroom_gib']:.1f}"
    )
    if "fits_at_zipf" in result:
        parts = (f"{s}: {'yes' if ok else 'no'}" for s, ok in result["fits_at_zipf"].items())
        line += f"; at zipf {', '.join(parts)}"
    return line


def ranking(results: Sequence[Mapping[str, Any]]) -> str:
    """The table of `plan`."""
    head = ["layout", "recompute", "tok/s/GPU", "MFU", "native", "step s", "bubble", "ep", "dp", "pp",
            "GiB", "room", "fits 0/.2/.4", "binding; next"]  # fmt: skip
    lines = [head]
    for result in results:
        total = result["step_seconds"]
        fits = result.get("fits_at_zipf", {})
        lines.append([
            result["layout"],
            _short(result["layout_full"]["recompute"]),
            f"{result['tokens_per_second_per_gpu']:,.0f}{band(result)}",
            f"{result['mfu']:.1%}",
            f"{result['mfu_native']:.1%}",
            f"{total:.2f}",
            f"{result['bubble_share']:.1%}",
            *(f"{result['exposed'][name] / total:.1%}" for name in ("ep", "dp", "pp")),
            f"{result['memory_gib_max_rank']:.0f}",
            f"{result['headroom_gib']:.0f}",
            "/".join("y" if ok else "n" for ok in fits.values()),
            f"{result['binding_constraint']}; {result['next_knob']}",
        ])  # fmt: skip
    return grid(lines)


def number(value: float) -> str:
    """Three digits at least: 0.218, 1,071."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def band(result: Mapping[str, Any]) -> str:
    """The held-out error as "+-12%", or nothing when it is unknown."""
    error = result["calibration"]["held_out_mape"]
    return "" if error is None else f" +-{error:.0%}"


def share(seconds: float, total: float) -> str:
    """Seconds and their share."""
    return f"{seconds:9.3f} s  {seconds / total:6.1%}" if total > 0 else f"{seconds:.3f} s"


def columns(rows: Iterable[tuple[str, str]]) -> str:
    """Two aligned columns."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def grid(lines: Iterable[Sequence[str]]) -> str:
    """Aligned columns, numbers to the right; the first and the last column to the left."""
    lines = list(lines)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    last = len(widths) - 1
    text = []
    for line in lines:
        cells = (
            c.ljust(w) if i in (0, last) and last > 4 or i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _gib(value: float) -> str:
    return "-" if value < 0.005 else f"{value:.2f}"


def _short(names: str) -> str:
    return names if len(names) <= 8 else f"{names.count('+') + 1} tensors"


def _extremes(stages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """First, fullest and last stage."""
    fullest = max(stages, key=lambda stage: stage["total"])
    return [stages[i] for i in sorted({0, stages.index(fullest), len(stages) - 1})]


def scaling(answer: Mapping[str, Any]) -> str:
    """The table of `scale`."""
    lines = [["GPUs", "batch", "step s", "tok/s/GPU", "slowest", "efficiency", "same batch",
              "bubble", "ep", "dp", "GiB"]]  # fmt: skip
    for row in answer["rows"]:
        total = row["step_seconds"]
        fixed = row.get("fixed_batch_efficiency")
        lines.append([
            f"{row['count']:,}",
            f"{row['batch']:,}",
            f"{total:.2f}",
            f"{row['tokens_per_second_per_gpu']:,.0f}",
            f"{row['slowest']:,.0f}",
            f"{row['efficiency']:.1%}",
            "-" if fixed is None else f"{fixed:.1%}",
            f"{row['bubble_share']:.1%}",
            f"{row['exposed']['ep'] / total:.1%}",
            f"{row['exposed']['dp'] / total:.1%}",
            f"{row['memory_gib_max_rank']:.0f}",
        ])  # fmt: skip
    return grid(lines)
