# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The yardstick of a run: what this machine and its engine are, and how fast they can be."""

import platform
from typing import Any

import jax

from anabranch import engine
from anabranch.train import machine

# One measurement takes about 0.1 s, and a busy neighbour can spoil it.
_ROUNDS = 3


def peak_tflops() -> float:
    """The bf16 peak as measured now, TFLOP/s: the best of a few times."""
    return max(engine.measure_peak_gflops("bfloat16") for _ in range(_ROUNDS)) / 1e3


def description() -> dict[str, Any]:
    """Machine and engine as a JSON-able object; `peak_tflops` is the bf16 peak measured now (TFLOP/s)."""
    return {
        "version": machine.package_version(),
        "machine": {
            "cpu": machine.cpu_model(),
            "cpus": machine.usable_cpus(),
            "memory_gib": round(machine.memory_gib(), 2),
            "python": platform.python_version(),
            "jax": jax.__version__,
        },
        "isa": engine.isa(),
        "threads": engine.num_threads(),
        "peak_tflops": peak_tflops(),
    }
