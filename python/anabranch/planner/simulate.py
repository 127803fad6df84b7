# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Runs scenarios through the engine and says what came out in the terms of the public interface."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
from typing import Any

from anabranch import _register
from anabranch.errors import UsageError
from anabranch.planner import layout, subject
from anabranch.planner.scenario import Imbalance, Scenario

GIB = 2.0**30
STREAMS = ("compute", "ep", "tp", "dp", "pp", "h2d", "d2h")
EXPOSED = ("ep", "tp", "dp", "pp", "offload")
_SINK = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char), ctypes.c_int64)


@functools.cache
def _function() -> Any:
    path = _register.library_path()
    if not path.exists():
        raise ImportError(f"anabranch: engine library not found at {path}; run `make build`")
    function = ctypes.CDLL(str(path)).anabranch_simulate
    function.argtypes = (ctypes.c_char_p, ctypes.c_int64, _SINK)
    function.restype = ctypes.c_int64
    return function


def run_engine(request: str) -> dict[str, Any]:
    """Answers one request in the engine's text form; UsageError for one it refuses."""
    texts: list[bytes] = []
    sink = _SINK(lambda text, size: texts.append(ctypes.string_at(text, size)))
    data = request.encode()
    if _function()(data, len(data), sink) != 0:
        raise UsageError(texts[0].decode())
    return json.loads(texts[0])


def simulate(
    scenario: Scenario, *, microbatch_limit: int = 0, trace: bool = False
) -> dict[str, Any]:
    """Simulates one training step.

    With `recompute` "auto" the first of `layout.RECOMPUTE_LADDER` that fits is taken, the last if none
    does. Returns the object that `anabranch sim --json` writes; times are seconds, memory is GiB,
    and means over pipeline stages add up to the step. `trace` keeps the engine's tasks under "tasks".

    Raises:
      UsageError: the layout is impossible; the message gives the rule.
    """
    scenario, raw = resolve(scenario, microbatch_limit)
    if trace:
        raw = run_engine(scenario.request(trace=True))
    return answer(scenario, raw)


def resolve(scenario: Scenario, microbatch_limit: int = 0) -> tuple[Scenario, dict[str, Any]]:
    """Replaces `recompute` "auto" by what fits; returns the engine's answer with it."""
    plan = scenario.layout
    if plan.recompute != "auto":
        return scenario, run_engine(scenario.request(microbatch_limit=microbatch_limit))
    capacity = scenario.hardware.constants["hbm_gib"]
    first, *between, last = layout.RECOMPUTE_LADDER
    # The ends of the ladder first: most layouts fit without recomputing, or not at all.
    chosen = _recompute(scenario, first, microbatch_limit)
    if needed_gib(*chosen) <= capacity:
        return chosen
    chosen = _recompute(scenario, last, microbatch_limit)
    if needed_gib(*chosen) > capacity:
        return chosen
    for names in between:
        tried = _recompute(scenario, names, microbatch_limit)
        if needed_gib(*tried) <= capacity:
            return tried
    return chosen


def _recompute(
    scenario: Scenario, names: str, microbatch_limit: int
) -> tuple[Scenario, dict[str, Any]]:
    tried = dataclasses.replace(scenario.layout, recompute=names)
    scenario = dataclasses.replace(scenario, layout=tried)
    return scenario, run_engine(scenario.request(microbatch_limit=microbatch_limit))


def peak_gib(raw: dict[str, Any]) -> float:
    """What the busiest rank allocates at its peak."""
    return max(stage["total"] for stage in raw["memory"]) / GIB


def needed_gib(scenario: Scenario, raw: dict[str, Any]) -> float:
    """The peak with the allocator's slack and what context and libraries hold."""
    constants = scenario.hardware.constants
    return peak_gib(raw) * (1 + constants["allocator_slack"]) + constants["reserved_gib"]


def answer(scenario: Scenario, raw: dict[str, Any]) -> dict[str, Any]:
    """Turns the engine's answer into the public one."""
    step = raw["step_seconds"]
    tokens = scenario.batch * scenario.sequence
    plan = scenario.layout
    per_token = subject.flops_per_token(
        scenario.model.model, scenario.sequence, mtp_layers=plan.mtp
    )
    constants = scenario.hardware.constants
    per_second = tokens / step / scenario.ranks if step > 0 else 0.0
    tflops = per_second * per_token / 1e12
    native = constants[_native(scenario)] or constants["bf16_tflops"]
    stages = raw["stages"]
    mean = {name: sum(stage[name] for stage in stages) / len(stages) for name in stages[0]}
    needed = needed_gib(scenario, raw)
    error = scenario.calibration.held_out_mape
    result = {
        "step_seconds": step,
        "tokens_per_second_per_gpu": per_second,
        "tokens_per_second_band": None if error is None else [
            per_second / (1 + error), per_second / max(1 - error, 1e-9)
        ],
        "tflops_per_gpu": tflops,
        "mfu": tflops / constants["bf16_tflops"],
        "mfu_native": tflops / native,
        "flops_per_token": per_token,
        "bubble_share": mean["bubble"] / step if step > 0 else 0.0,
        "compute_seconds": mean["compute"],
        "recompute_seconds": mean["recompute"],
        "optimizer_seconds": mean["optimizer"],
        "imbalance_seconds": raw["imbalance_seconds"],
        "exposed": {name: mean[name] for name in EXPOSED},
        "memory_gib_max_rank": peak_gib(raw),
        "memory_gib_needed": needed,
        "headroom_gib": constants["hbm_gib"] - needed,
        "fits": needed <= constants["hbm_gib"] and not _overflows(plan, raw),
        "memory": [_memory(stage) for stage in raw["memory"]],
        "stages": stages,
        "chunks": raw["chunks"],
        "rank_load": raw["rank_load"],
        "microbatches": raw["microbatches"],
        "data_parallel": raw["data_parallel"],
        "expert_data_parallel": raw["expert_data_parallel"],
        "layout": plan.describe(),
        "layout_full": dataclasses.asdict(plan) | {"overlap": plan.overlaps},
        "model": scenario.model.name,
        "hardware": f"{scenario.hardware.name}:{scenario.ranks}",
        "recipe": scenario.recipe,
        "batch": scenario.batch,
        "sequence": scenario.sequence,
        "imbalance": scenario.imbalance.name,
        "peaks": {"bf16_tflops": constants["bf16_tflops"], "native_tflops": native},
        "calibration": scenario.calibration.describe(),
    }  # fmt: skip
    result["binding_constraint"], result["next_knob"] = binding(scenario, result)
    if "tasks" in raw:
        result["tasks"] = raw["tasks"]
    return result


def _native(scenario: Scenario) -> str:
    if scenario.recipe == "bf16":
        return "bf16_tflops"
    return "fp4_tflops" if scenario.recipe == "nvfp4" else "fp8_tflops"


def _overflows(plan: layout.Layout, raw: dict[str, Any]) -> bool:
    return 0 < plan.dispatch_factor < raw["rank_load"]


def _memory(stage: dict[str, Any]) -> dict[str, Any]:
    gib = {k: v / GIB for k, v in stage.items() if isinstance(v, float | int)}
    gib["peak_seconds"] = stage["peak_seconds"]
    gib["parameters"] = stage["parameters"]
    gib["activations"] = {k: v / GIB for k, v in stage["activations"].items()}
    return gib


def binding(scenario: Scenario, result: dict[str, Any]) -> tuple[str, str]:
    """What limits the step, and what to try next."""
    plan = scenario.layout
    step = result["step_seconds"]
    if not result["fits"]:
        if 0 < plan.dispatch_factor < result["rank_load"]:
            return "receive buffer", "raise dispatch_factor, or 0 for exact sizes"
        return "memory", _memory_knob(plan, result)
    shares = {name: result["exposed"][name] / step for name in EXPOSED}
    shares["bubble"] = result["bubble_share"]
    shares["imbalance"] = result["imbalance_seconds"] / step
    shares["recompute"] = result["recompute_seconds"] / step
    name = max(shares, key=shares.__getitem__)
    if shares[name] < 0.05:
        return "compute", "larger mbs for fuller expert products, or a lower-precision recipe"
    knobs = {
        "ep": "overlap=on" if not plan.overlaps else "smaller ep, or node_limit and wire=fp8",
        "tp": "smaller tp",
        "dp": "more microbatches a step (larger gbs)" if plan.sharding != "fsdp"
        else "larger mbs a gather, or ep in place of fsdp",
        "pp": "fewer stages or larger mbs",
        "offload": "offload less, or recompute instead",
        "bubble": "more microbatches (larger gbs)" if plan.vp > 1 else "vp, or larger gbs",
        "imbalance": "smaller ep, or better balancing",
        "recompute": "recompute less where memory allows, or offload",
    }  # fmt: skip
    return name, knobs[name]


def _memory_knob(plan: layout.Layout, result: dict[str, Any]) -> str:
    worst = max(result["memory"], key=lambda stage: stage["total"])
    static = worst["weights"] + worst["gradients"] + worst["optimizer"]
    if sum(worst["activations"].values()) > static and plan.recompute != "full":
        return "recompute=full, offload, or smaller mbs"
    if plan.sharding != "fsdp" and plan.pp == 1:
        return "larger ep or pp, or fsdp"
    return "larger pp or ep, fsdp, or offload=optimizer"


def fits_at(scenario: Scenario, exponents: tuple[float, ...] = (0.0, 0.2, 0.4)) -> dict[str, bool]:
    """Whether the busiest rank's memory fits under Zipf imbalance of each exponent."""
    found = {}
    for exponent in exponents:
        load = Imbalance(name=f"zipf:{exponent:g}", zipf=exponent, seed=scenario.imbalance.seed)
        tried = dataclasses.replace(scenario, imbalance=load)
        raw = run_engine(tried.request(microbatch_limit=1))
        capacity = scenario.hardware.constants["hbm_gib"]
        enough = needed_gib(tried, raw) <= capacity
        found[f"{exponent:g}"] = enough and not _overflows(scenario.layout, raw)
    return found
