# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Tries every layout of a machine and ranks what is possible."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from anabranch.errors import UsageError
from anabranch.planner import layout, simulate
from anabranch.planner.scenario import Scenario

OBJECTIVES = {
    "tokens_per_second": lambda result: result["tokens_per_second_per_gpu"],
    "headroom": lambda result: result["headroom_gib"],
}
# The engine simulates as few microbatches as reach the steady state and extends the step linearly.
_MICROBATCHES = 1
_MAX_TP, _MAX_MBS = 8, 4


def candidates(scenario: Scenario) -> Iterator[layout.Layout]:
    """Every layout worth a try: powers of two (and divisors of the experts) of each degree.

    Words of the scenario's own layout that are not degrees (overlap, graph, wire, ...) are kept.
    Parameters are sharded (fsdp) only without a pipeline, where gathering is per step, not per stage.
    """
    model = scenario.model.model
    ranks = scenario.ranks
    experts = [n for n in _degrees(model.num_experts) if model.num_experts % n == 0]
    for tp in _degrees(min(_MAX_TP, ranks)):
        for pp in _degrees(min(model.num_layers, ranks // tp)):
            for ep in experts if model.num_moe_layers else [1]:
                degrees = dataclasses.replace(scenario.layout, tp=tp, pp=pp, ep=ep, vp=1)
                if ranks % (tp * pp) == 0:
                    yield from _variants(
                        degrees, model.num_layers, scenario.batch * tp * pp // ranks
                    )


def _variants(degrees: layout.Layout, layers: int, share: int) -> Iterator[layout.Layout]:
    """Microbatches, virtual stages, sharding and overlap for given degrees.

    `share` is the sequences of one data-parallel rank.
    """
    for mbs in (1, 2, _MAX_MBS):
        base = dataclasses.replace(degrees, mbs=mbs)
        for vp in (1, 2, 4, 8):
            if vp == 1 or 1 < degrees.pp and degrees.pp * vp <= layers:
                yield dataclasses.replace(base, vp=vp)
        if degrees.pp == 1 and degrees.ep > 1 and degrees.overlap is None:
            yield dataclasses.replace(base, overlap=True)
    if degrees.pp == 1:
        for mbs in sorted({_MAX_MBS, max(share, 1)}):
            yield dataclasses.replace(degrees, mbs=mbs, sharding="fsdp")


def _degrees(limit: int) -> list[int]:
    return [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]


def plan(scenario: Scenario, top: int = 10, objective: str = "tokens_per_second") -> dict[str, Any]:
    """Simulates every candidate and returns the best `top`, best first.

    Returns:
      "ranked": answers of `simulate.simulate` with "fits_at_zipf"; "tried", and "refused": how many
      candidates fell to each reason; "closest": what needs the least memory, when nothing fits.

    Raises:
      UsageError: an unknown objective.
    """
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective}: must be one of {', '.join(OBJECTIVES)}")
    refused: collections.Counter[str] = collections.Counter()
    good: list[tuple[Scenario, dict[str, Any]]] = []
    closest: tuple[Scenario, dict[str, Any]] | None = None
    tried = 0
    workers = max(1, min(os.cpu_count() or 1, 8))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        scenarios = [dataclasses.replace(scenario, layout=c) for c in candidates(scenario)]
        for found, raw, reason in pool.map(_try, scenarios):
            tried += 1
            if raw is None:
                refused[reason] += 1
                continue
            answer = simulate.answer(found, raw)
            need = answer["memory_gib_needed"]
            if closest is None or need < closest[1]["memory_gib_needed"]:
                closest = (found, answer)
            if answer["fits"]:
                good.append((found, answer))
            else:
                refused["memory: more than the accelerator has, even with recompute=full"] += 1
    good.sort(key=lambda pair: (-OBJECTIVES[objective](pair[1]), pair[1]["layout"]))
    ranked = []
    for found, answer in good[:top]:
        answer["fits_at_zipf"] = simulate.fits_at(found)
        ranked.append(answer)
    return {
        "objective": objective,
        "tried": tried,
        "possible": len(good),
        "refused": dict(refused.most_common()),
        "ranked": ranked,
        "closest": None if good or closest is None else closest[1],
    }


def first_that_fits(scenario: Scenario) -> Scenario:
    """The scenario with the fastest layout that fits; with the least memory when none does."""
    found = plan(scenario, top=1)
    best = found["ranked"][0] if found["ranked"] else found["closest"]
    if best is None:
        raise UsageError(f"no layout of {scenario.ranks} accelerators is possible for this batch")
    full = {k: v for k, v in best["layout_full"].items() if k != "overlap"}
    chosen = layout.Layout(**full, overlap=best["layout_full"]["overlap"])
    return dataclasses.replace(scenario, layout=chosen)


def _try(scenario: Scenario) -> tuple[Scenario, dict[str, Any] | None, str]:
    try:
        limit = _MICROBATCHES
        needed = static_gib(scenario)
        capacity = scenario.hardware.constants["hbm_gib"]
        if needed > capacity:
            return scenario, None, "memory: weights, gradients and optimizer alone exceed it"
        found, raw = simulate.resolve(scenario, limit)
    except UsageError as error:
        return scenario, None, _rule(str(error))
    return found, raw, ""


def _rule(message: str) -> str:
    """A refusal without its numbers, so that equal reasons count together."""
    name, _, rest = message.partition(": ")
    return f"{name.split('=')[0]}: {rest}" if rest else message


def static_gib(scenario: Scenario) -> float:
    """A lower bound of a rank's memory: parameters and their state, split as the layout says."""
    plan, model = scenario.layout, scenario.model.model
    stage = scenario.ranks // plan.pp
    if stage % plan.ep:
        raise UsageError(f"ep={plan.ep}: must divide the {stage} ranks of a pipeline stage")
    experts = 3 * model.hidden_size * model.expert_width * model.num_experts * model.num_moe_layers
    held = experts / (plan.ep * plan.pp)
    shards = stage / plan.ep
    if plan.sharding == "fsdp":
        held /= shards
        shards = 1
    if plan.sharding == "none" or "optimizer" in plan.offload:
        shards = 1 if plan.sharding == "none" else float("inf")
    return held * (2 + plan.gradient_bytes + plan.state_bytes / shards) / simulate.GIB
