# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Turns what a step reports and how long it took into a line of `metrics.jsonl`."""

import dataclasses
import time
from typing import Any

import numpy as np

from anabranch import models
from anabranch.recipes.recipe import Recipe
from anabranch.train import machine, precision
from anabranch.train.evaluation import bits_per_byte
from anabranch.train.step import StepMetrics


@dataclasses.dataclass
class Position:
    """How far a run has come; together with TrainState all that a resumed run needs."""

    step: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    non_finite_in_a_row: int = 0
    cursor: Any = None

    def scalars(self, recipe: Recipe) -> dict[str, Any]:
        """JSON-able form for a checkpoint's manifest."""
        return {**dataclasses.asdict(self), "seed": recipe.train.seed, "recipe": recipe.name}

    @classmethod
    def from_scalars(cls, scalars: dict[str, Any]) -> "Position":
        """The inverse of `scalars`."""
        return cls(**{field.name: scalars[field.name] for field in dataclasses.fields(cls)})


class Meter:
    """Adds up times and tokens between two logged steps.

    The peak that `mfu` is a share of is the most that was measured or reached so far: what else the machine had to
    do at the time of one measurement must not flatter the steps after it.
    """

    def __init__(
        self, recipe: Recipe, bytes_per_token: float, peak_tflops: float, seconds: float
    ) -> None:
        """Starts the clock at `seconds`, what earlier processes of a resumed run took.

        `bytes_per_token` is that of the training text, `peak_tflops` was measured in this process.
        """
        self._model = recipe.model
        self._bytes_per_token, self._peak_tflops = bytes_per_token, peak_tflops
        self._flops_per_token = models.flops_per_token(recipe.model, recipe.train.sequence_length)
        self._mark = time.perf_counter()
        self._began = self._mark - seconds
        self._clear()

    def raise_peak(self, peak_tflops: float) -> None:
        """Takes note of another measurement of the peak."""
        self._peak_tflops = max(self._peak_tflops, peak_tflops)

    def start(self) -> None:
        """Starts the clock of the first interval."""
        self._mark = time.perf_counter()

    def add(self, metrics: StepMetrics, data_seconds: float, step_seconds: float) -> None:
        """Counts one step."""
        tokens, routed = int(metrics.num_tokens), int(metrics.group_sizes.sum())
        self._steps += 1
        self._tokens += tokens
        self._dropped += tokens * self._model.topk * len(metrics.group_sizes) - routed
        self._data_seconds += data_seconds
        self._step_seconds += step_seconds

    def elapsed(self) -> float:
        """Seconds of this run, all its processes together."""
        return time.perf_counter() - self._began

    def brief(self, position: Position, metrics: StepMetrics) -> dict[str, Any]:
        """What the progress line shows after every step."""
        busy = self._data_seconds + self._step_seconds
        rate = self._tokens / busy if busy > 0 else 0.0
        loss = float(metrics.cross_entropy)
        tflops = rate * self._flops_per_token / 1e12
        self.raise_peak(tflops)
        return {
            "step": position.step,
            "tokens": position.tokens,
            "loss": loss,
            "bits_per_byte": bits_per_byte(loss, self._bytes_per_token),
            "grad_norm": float(metrics.grad_norm),
            "learning_rate": float(metrics.learning_rate),
            "step_seconds": busy / max(self._steps, 1),
            "tokens_per_second": rate,
            "model_tflops": tflops,
            "mfu": tflops / self._peak_tflops,
            "peak_tflops": self._peak_tflops,
            "rss_gib": machine.resident_gib(),
            "skipped_steps": position.skipped_steps,
        }

    def record(self, position: Position, metrics: StepMetrics) -> dict[str, Any]:
        """A step line of `metrics.jsonl`; times and rates are means since the last one."""
        now = time.perf_counter()
        other = now - self._mark - self._data_seconds - self._step_seconds
        line = {
            **self.brief(position, metrics),
            "seconds": self.elapsed(),
            "auxiliary_loss": float(metrics.objective) - float(metrics.cross_entropy),
            "dropped_tokens": self._dropped,
            **balance(metrics.group_sizes),
            **precision.summary(metrics.precision, precision.product_names(self._model)),
            "time_split": {
                "data": self._data_seconds,
                "step": self._step_seconds,
                "other": max(other, 0.0),
            },
        }
        self._mark = now
        self._clear()
        return line

    def _clear(self) -> None:
        self._steps = self._tokens = self._dropped = 0
        self._data_seconds = self._step_seconds = 0.0


def balance(group_sizes: np.ndarray) -> dict[str, Any]:
    """Load figures of one step from i32 [L, E] tokens per expert: lists with one entry per MoE layer.

    `max_violation` is the largest load over the mean, minus 1 (Wang et al. 2024, arXiv 2408.15664);
    `dead_experts` counts experts without a token; `expert_load` is the counts themselves.
    """
    loads = np.asarray(group_sizes, np.int64)
    means = loads.mean(axis=1) if loads.size else np.zeros(len(loads))
    return {
        "max_violation": [
            float(load.max() / mean - 1) if mean > 0 else 0.0
            for load, mean in zip(loads, means, strict=True)
        ],
        "dead_experts": [int((load == 0).sum()) for load in loads],
        "expert_load": loads.tolist(),
    }
