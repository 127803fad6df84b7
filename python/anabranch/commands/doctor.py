# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch doctor`: what this installation is and what this machine can do."""

import argparse
import ctypes.util
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from anabranch.commands import output

HELP = "show Python, jax, CPU, chosen kernels, measured peaks, and what else was found"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    facts = software() | hardware()
    code = 0
    try:
        facts |= engine()
    except (ImportError, OSError) as error:
        facts["engine"] = f"not usable: {error}"
        code = 1
    facts |= {"mpi": find_mpi(), "cuda": find_cuda(), "nccl": find_nccl()}
    print(output.table((name, _show(value)) for name, value in facts.items()))
    for line in warnings(facts):
        print(f"note: {line}")
    output.write_json(args, {**facts, "notes": warnings(facts)})
    return code


def software() -> dict[str, Any]:
    """Versions of what runs."""
    import jax
    import jaxlib

    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def hardware() -> dict[str, Any]:
    """CPU and memory as the operating system grants them to this process."""
    from anabranch.train import machine

    quota = machine.cpu_quota()
    return {
        "cpu": machine.cpu_model(),
        "cpus": os.cpu_count(),
        "usable_cpus": machine.usable_cpus(),
        "cpu_quota": "none" if quota is None else round(quota, 2),
        "memory_gib": round(machine.memory_gib(), 1),
    }


def engine() -> dict[str, Any]:
    """The engine: its instruction set, its threads, and yardsticks measured now."""
    from anabranch import engine

    return {
        "cpu_features": " ".join(engine.cpu_features()),
        "isa": engine.isa(),
        "isa_forced": _forced_isa(engine.forced_isa_error()),
        "threads": engine.num_threads(),
        "peak_bf16_gflops": round(engine.measure_peak_gflops("bfloat16"), 1),
        "peak_f32_gflops": round(engine.measure_peak_gflops("float32"), 1),
        "copy_gb_per_s": round(engine.measure_copy_gb_per_s(), 2),
    }


def _forced_isa(fault: str) -> str:
    name = os.environ.get("ANABRANCH_FORCE_ISA")
    if not name:
        return "no"
    return f"ANABRANCH_FORCE_ISA={name}" + (f" was not obeyed: {fault}" if fault else "")


def find_mpi() -> str:
    """Whether MPI is on this machine, and why it is or isn't used."""
    launcher = shutil.which("mpirun") or shutil.which("mpiexec")
    if launcher is None:
        return "not found: no mpirun or mpiexec on PATH"
    from anabranch import _processes

    module = _processes.module_path()
    if not module.exists():
        return f"found {launcher}; not used: this build has no MPI ({module} does not exist)"
    return f"found {launcher}; `mpirun -np N anabranch train` starts N ranks"


def find_cuda() -> str:
    """Whether a CUDA driver and device are on this machine."""
    driver = ctypes.util.find_library("cuda")
    if driver is None:
        return "not found: no libcuda"
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return f"found {driver}, but no device /dev/nvidia*"
    return f"found {driver}; not used: this build runs on the CPU"


def find_nccl() -> str:
    """Whether NCCL is on this machine."""
    library = ctypes.util.find_library("nccl")
    if library is None:
        return "not found: no libnccl"
    return f"found {library}; not used: this build runs on the CPU"


def warnings(facts: dict[str, Any]) -> list[str]:
    """What a user might want to change."""
    notes = []
    cpus, usable = facts["cpus"] or 1, facts["usable_cpus"]
    if usable < cpus:
        notes.append(f"this process may use {usable} of {cpus} CPUs (its affinity)")
    quota = facts["cpu_quota"]
    if quota != "none" and quota < usable:
        notes.append(f"a CPU quota of {quota} applies; XLA's pool is kept within it through NPROC")
    return notes


def _show(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
