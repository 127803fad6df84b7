# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Which curves a report shows, and in which units."""

from __future__ import annotations

import math

import numpy as np

from anabranch.train.report.axis import Axis, fit
from anabranch.train.report.chart import Chart, Series, draw
from anabranch.train.report.run_log import RunLog, number
from anabranch.train.report.summary import Summary


def learning(log: RunLog, summary: Summary) -> str:
    """Returns bits per byte, loss, gradient norm and learning rate."""
    charts = [_bits_per_byte(log, summary), _loss(log, summary), _gradient(log)]
    charts.append(_simple(log, "learning_rate", "Learning rate", "per step", zero=True))
    return _grid(charts)


def balance(log: RunLog) -> str:
    """Returns the largest load of each layer, and dead experts when there were any."""
    charts = []
    for key, title, unit in (
        ("max_violation", "MaxVio per layer", "largest load / mean load − 1"),
        ("dead_experts", "Dead experts per layer", "experts that received no token"),
    ):
        table = log.layers(key)
        if table.size and (key == "max_violation" or np.nansum(table)):
            charts.append(_per_layer(log, table, title, unit))
    return _grid(charts)


def speed(log: RunLog, summary: Summary) -> str:
    """Returns throughput, model FLOPs utilisation and memory."""
    peak = "" if math.isnan(summary.peak_tflops) else f" of {summary.peak_tflops:.3g} TFLOP/s"
    charts = [
        _simple(log, "tokens_per_second", "Throughput", "tokens / s", zero=True),
        _simple(log, "mfu", "MFU", f"share{peak}, measured", zero=True, percentage=True),
        _simple(log, "rss_gib", "Memory", "resident, GiB", zero=True),
    ]
    return _grid(charts)


def precision(log: RunLog) -> str:
    """Returns the shares of saturated and flushed elements, if the run logged them."""
    charts = [
        _simple(log, key, title, "share of elements", zero=True, percentage=True)
        for key, title in (("saturated_share", "Saturated"), ("flushed_share", "Flushed to zero"))
        if np.isfinite(log.series(key)).any()
    ]
    return _grid(charts)


def _grid(charts: list[Chart]) -> str:
    return f'<div class="grid">{"".join(map(draw, charts))}</div>' if charts else ""


def _step_axis(log: RunLog) -> Axis:
    last = max((number(record["step"]) for record in log.steps), default=1.0)
    evals = max((number(record.get("step")) for record in log.evals), default=0.0)
    return Axis(0.0, 1.02 * max(last, evals if evals == evals else 0.0, 1.0), "step", whole=True)


def _marks(log: RunLog) -> list[tuple[str, float]]:
    return [("resumed", float(step)) for step in log.resumed_at[-5:]]


def _simple(
    log: RunLog,
    key: str,
    title: str,
    unit: str,
    *,
    zero: bool = False,
    percentage: bool = False,
) -> Chart:
    values = log.series(key)
    axis = fit([values], unit, zero=zero, percentage=percentage)
    series = Series(title, log.series("step"), values)
    return Chart(title, _step_axis(log), axis, [series], marks=_marks(log))


def _bits_per_byte(log: RunLog, summary: Summary) -> Chart:
    trained = Series("training", log.series("step"), log.series("bits_per_byte"))
    held_out = _held_out(log, "held_out_bits_per_byte")
    levels = [("unigram byte model", summary.unigram), ("bigram byte model", summary.bigram)]
    levels = [(f"{label}  {y:.2f}", y) for label, y in levels if math.isfinite(y)]
    axis = fit([trained.y, held_out.y, np.array([y for _, y in levels])], "bits / byte")
    series = [trained, held_out, _skipped(log)]
    return Chart(
        "Training and held-out text", _step_axis(log), axis, series, references=levels,
        marks=_marks(log), wide=True,
    )  # fmt: skip


def _held_out(log: RunLog, key: str) -> Series:
    step = np.array([number(record.get("step")) for record in log.evals])
    value = np.array([number(record.get(key)) for record in log.evals])
    return Series("held out", step, value, "c2", "dots")


def _skipped(log: RunLog) -> Series:
    """Returns flags at skipped steps: those told by an event and logged ones without a loss."""
    silent = log.series("step")[~np.isfinite(log.series("loss"))]
    told = np.array([number(record.get("step")) for record in log.skipped])
    steps = np.union1d(silent, told[np.isfinite(told)])
    return Series("skipped step", steps, np.ones(len(steps)), "bad", "flags")


def _loss(log: RunLog, summary: Summary) -> Chart:
    tokens, steps, loss = log.series("tokens"), log.series("step"), log.series("loss")
    held_out = _held_out(log, "held_out_loss")
    known = np.isfinite(tokens)
    if known.any():
        at = np.interp(held_out.x, steps[known], tokens[known])
        held_out = Series(held_out.label, at, held_out.y, "c2", "dots")
    positive = tokens[known & (tokens > 0)]
    spread = positive.size > 1 and positive.max() > 30 * positive.min()
    across = fit([tokens], "tokens", log=bool(spread), tight=bool(spread), zero=not spread)
    axis = fit([loss, held_out.y], "nats / token")
    return Chart("Loss", across, axis, [Series("training", tokens, loss), held_out])


def _gradient(log: RunLog) -> Chart:
    norm = log.series("grad_norm")
    positive = norm[np.isfinite(norm) & (norm > 0)]
    log_scale = positive.size > 1 and positive.max() > 10 * positive.min()
    clip = number(log.setting("train", "gradient_clip"))
    levels = [("clipped above", clip)] if clip > 0 else []
    axis = fit([norm], "before clipping", log=bool(log_scale), zero=not log_scale)
    series = [Series("Gradient norm", log.series("step"), norm)]
    return Chart(
        "Gradient norm", _step_axis(log), axis, series, references=levels, marks=_marks(log)
    )


def _per_layer(log: RunLog, table: np.ndarray, title: str, unit: str) -> Chart:
    layers, steps = table.shape[1], log.series("step")
    series = [
        Series(f"layer {i + 1}", steps, table[:, i], f"r{_shade(i, layers)}") for i in range(layers)
    ]
    axis = fit([table], unit, zero=True)
    legend = _depth_legend(layers) if layers > 4 else ""
    return Chart(title, _step_axis(log), axis, series, marks=_marks(log), legend=legend)


def _shade(layer: int, layers: int) -> int:
    return round(7 * layer / (layers - 1)) if layers > 1 else 3


def _depth_legend(layers: int) -> str:
    keys = "".join(f'<i class="key line r{i}"></i>' for i in range(8))
    return f'<ul class="legend depth"><li>MoE layer 1{keys}{layers}</li></ul>'
