# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``sim``: how long the planner takes, against the seconds that it may take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anabranch.bench.timing import measure
from anabranch.planner import scenario, simulate

# A step of DeepSeek-V3 on 1,024 accelerators is to take less than this on two cores.
_BUDGET_SECONDS = 10.0
_STEPS = (
    ("sim_dsv3_1024", {"hw": "gb200:1024", "layout_text": "pp4,vp4,ep64", "batch": 16_384}),
    ("sim_dsv3_2048_dualpipe", {"hw": "h800:2048", "layout_text": "pp16,ep64,dualpipe",
                                "batch": 32_768}),
)  # fmt: skip


def rows() -> Iterator[dict[str, Any]]:
    """Whole steps, every microbatch; ``max_error`` is what extending two short steps is off by."""
    for name, words in _STEPS:
        one = scenario.make(model="deepseek-v3-671b", recipe="mxfp8", options="recompute=latent",
                            **words)  # fmt: skip
        timing = measure(lambda one=one: simulate.simulate(one), budget_seconds=2.0)
        whole = simulate.simulate(one)
        short = simulate.simulate(one, microbatch_limit=1)
        if short == whole:
            raise RuntimeError(f"bench: {name}: the step is too short to be extended")
        error = abs(short["step_seconds"] / whole["step_seconds"] - 1)
        if not error < 0.01:
            raise RuntimeError(f"bench: {name}: an extended step is off by {error:.2%}")
        yield {
            "name": name,
            "shape": {"accelerators": one.ranks, "microbatches": int(whole["microbatches"])},
            "dtype": "float64",
            "threads": 1,
            "budget_seconds": _BUDGET_SECONDS,
            "max_error": error,
            "timing": timing,
        }
