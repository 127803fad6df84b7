# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What happens to a step when the same layout gets more data-parallel copies."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from anabranch.errors import UsageError
from anabranch.planner import simulate
from anabranch.planner.scenario import Scenario


def counts(first: int, last: int) -> list[int]:
    """`first`, doubled until `last`, and `last` itself."""
    if not 1 <= first <= last:
        raise UsageError(f"--from {first} --to {last}: must be 1 <= from <= to")
    found = [first]
    while found[-1] * 2 < last:
        found.append(found[-1] * 2)
    return found if found[-1] == last else [*found, last]


def scale(scenario: Scenario, sizes: list[int], jitter: float, seeds: int) -> dict[str, Any]:
    """Simulates `scenario` (of `sizes[0]` accelerators) at every size.

    Weak scaling: the batch grows with the accelerators. Efficiency is tokens per second and
    accelerator over that at `sizes[0]`, each averaged over `seeds` draws of `jitter`, the standard
    deviation of a rank's relative speed; the step waits for the slowest rank. What that costs at
    `sizes[0]` is in the calibration already. "fixed_batch" is the same with the first size's batch, where
    that divides.
    """
    if not 0 <= jitter < 0.5:
        raise UsageError(f"--jitter {jitter:g}: must be 0 to 0.5")
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: must be at least 1")
    scenario, _ = simulate.resolve(scenario, 16)
    rows = []
    for size in sizes:
        grown = _at(scenario, size, scenario.batch * size // sizes[0])
        row = _row(grown, sizes[0], jitter, seeds)
        row["fixed_batch"] = None
        share = size // (scenario.layout.tp * scenario.layout.cp * scenario.layout.pp)
        if scenario.batch % (share * scenario.layout.mbs) == 0:
            fixed = _row(_at(scenario, size, scenario.batch), sizes[0], jitter, seeds)
            row["fixed_batch"] = fixed["tokens_per_second_per_gpu"]
        rows.append(row)
    base = rows[0]["tokens_per_second_per_gpu"]
    for row in rows:
        row["efficiency"] = row["tokens_per_second_per_gpu"] / base
        if row["fixed_batch"] is not None:
            row["fixed_batch_efficiency"] = row["fixed_batch"] / rows[0]["fixed_batch"]
    return {
        "model": scenario.model.name,
        "hardware": scenario.hardware.name,
        "recipe": scenario.recipe,
        "layout": scenario.layout.describe(),
        "imbalance": scenario.imbalance.name,
        "jitter": jitter,
        "seeds": seeds,
        "rows": rows,
        "calibration": scenario.calibration.describe(),
    }


def _at(scenario: Scenario, size: int, batch: int) -> Scenario:
    plan = dataclasses.replace(scenario.layout, dp=0, edp=0, fsdp=0)
    return dataclasses.replace(scenario, ranks=size, batch=batch, layout=plan)


def _row(scenario: Scenario, reference: int, jitter: float, seeds: int) -> dict[str, Any]:
    answers = []
    for seed in range(seeds if jitter > 0 else 1):
        drawn = dataclasses.replace(
            scenario.imbalance, jitter=jitter, jitter_reference=reference, seed=seed
        )
        one = dataclasses.replace(scenario, imbalance=drawn)
        answers.append(simulate.simulate(one, microbatch_limit=32))
    speeds = [answer["tokens_per_second_per_gpu"] for answer in answers]
    first = answers[0]
    return {
        "count": scenario.ranks,
        "batch": scenario.batch,
        "microbatches": first["microbatches"],
        "step_seconds": statistics.fmean(answer["step_seconds"] for answer in answers),
        "tokens_per_second_per_gpu": statistics.fmean(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "tflops_per_gpu": statistics.fmean(answer["tflops_per_gpu"] for answer in answers),
        "bubble_share": first["bubble_share"],
        "exposed": first["exposed"],
        "exposed_dp_share": first["exposed"]["dp"] / first["step_seconds"],
        "memory_gib_max_rank": first["memory_gib_max_rank"],
        "fits": first["fits"],
    }
