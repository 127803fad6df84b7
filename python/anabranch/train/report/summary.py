# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The numbers at the head of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from anabranch.train.report.run_log import RunLog, number


@dataclass(frozen=True)
class Summary:
    """One run in a few numbers; NaN where the run does not say."""

    recipe: str
    description: str
    status: str
    last_step: float
    total_steps: float
    seconds: float
    parameters_total: float
    parameters_active: float
    tokens: float
    train_bits_per_byte: float
    held_out_bits_per_byte: float
    held_out_step: float
    unigram: float
    bigram: float
    tokens_per_second: float
    mfu: float
    peak_tflops: float
    peak_gib: float
    dropped_tokens: float
    skipped_steps: float
    dead_experts: float
    max_violation: float


def summarise(log: RunLog) -> Summary:
    """Returns the summary of a run in any state."""
    finished = log.finished or {}
    held_out = _last_eval(log)
    parameters = log.started.get("parameters")
    counts = parameters if isinstance(parameters, Mapping) else {"total": parameters}
    baselines = log.started.get("baselines")
    byte_models = baselines if isinstance(baselines, Mapping) else {}
    return Summary(
        recipe=str(log.setting("name") or log.started.get("recipe") or log.name),
        description=str(log.setting("description") or ""),
        status=_status(log),
        last_step=log.last("step"),
        total_steps=log.total_steps(),
        seconds=_seconds(log, finished),
        parameters_total=number(counts.get("total")),
        parameters_active=number(counts.get("active")),
        tokens=log.last("tokens"),
        train_bits_per_byte=log.last("bits_per_byte"),
        held_out_bits_per_byte=held_out[1],
        held_out_step=held_out[0],
        unigram=number(byte_models.get("unigram")),
        bigram=number(byte_models.get("bigram")),
        tokens_per_second=typical(log, "tokens_per_second"),
        mfu=typical(log, "mfu"),
        peak_tflops=_first_number(log.last("peak_tflops"), log.started.get("peak_tflops")),
        peak_gib=_largest(log.series("rss_gib"), finished.get("peak_rss_gib")),
        dropped_tokens=_sum(log.series("dropped_tokens")),
        skipped_steps=_largest(log.series("skipped_steps"), finished.get("skipped_steps")),
        dead_experts=_last_row(log.layers("dead_experts"), np.nansum),
        max_violation=_last_row(log.layers("max_violation"), np.nanmax),
    )


def typical(log: RunLog, key: str) -> float:
    """Returns the median over logged steps, without the first where there are others."""
    values = log.series(key)
    values = values[1:] if len(values) > 1 else values
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else math.nan


def _status(log: RunLog) -> str:
    if log.finished is None:
        return "unfinished"
    return str(log.finished.get("status") or "finished")


def _seconds(log: RunLog, finished: Mapping[str, object]) -> float:
    keys = ("seconds", "total_seconds", "wall_seconds")
    stated = _first_number(*(finished.get(key) for key in keys))
    if math.isfinite(stated) or not log.steps:
        return stated
    steps = np.diff(log.series("step"), prepend=0.0)
    return float(np.nansum(steps * log.series("step_seconds")))


def _last_eval(log: RunLog) -> tuple[float, float]:
    for record in reversed(log.evals):
        if math.isfinite(number(record.get("held_out_bits_per_byte"))):
            return number(record.get("step")), number(record["held_out_bits_per_byte"])
    return math.nan, math.nan


def _first_number(*values: object) -> float:
    return next((number(value) for value in values if math.isfinite(number(value))), math.nan)


def _largest(values: np.ndarray, other: object) -> float:
    candidates = [float(v) for v in (*values, number(other)) if math.isfinite(v)]
    return max(candidates, default=math.nan)


def _sum(values: np.ndarray) -> float:
    return float(np.nansum(values)) if np.isfinite(values).any() else math.nan


def _last_row(table: np.ndarray, reduce: np.ufunc) -> float:
    rows = table[np.isfinite(table).any(axis=1)] if table.size else table
    return float(reduce(rows[-1])) if rows.size else math.nan
