# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Starts a module under mpirun and reads what its rank 0 reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

from anabranch import _processes
from anabranch.bench.timing import observe

_MARK = "report: "
_TIMEOUT_SECONDS = 600


def observed(module: str, ranks: int) -> tuple[dict[str, Any], float]:
    """What ``run`` returns, and the cores that others used meanwhile."""
    found: dict[str, Any] = {}

    def call() -> list[float]:
        found.update(run(module, ranks))
        return [1.0, 1.0]  # the ranks time themselves

    return found, observe(call).busy_cores


def run(module: str, ranks: int, *arguments: str) -> dict[str, Any]:
    """What rank 0 of ``python -m module`` hands to ``report``; nothing, with a note, where there is no MPI."""
    mpirun = shutil.which("mpirun")
    if mpirun is None or not _processes.module_path().exists():
        missing = "mpirun" if mpirun is None else str(_processes.module_path())
        print(f"note: no rows of {module}: there is no {missing}", file=sys.stderr)
        return {}
    command = [mpirun, "-np", str(ranks), sys.executable, "-m", module, *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS,
        # Pages of one size for all that is compared: JAX's arrays do not get large ones.
        env={**os.environ, **_processes.LAUNCHER_ENVIRONMENT, "NUMPY_MADVISE_HUGEPAGE": "0"},
    )  # fmt: skip
    found = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    if result.returncode or len(found) != 1:
        raise RuntimeError(f"bench: {' '.join(command)} failed: {result.stderr[-400:]}")
    reported: dict[str, Any] = json.loads(found[0][len(_MARK) :])
    return reported


def report(found: dict[str, Any]) -> None:
    """Called by one rank, once."""
    print(_MARK + json.dumps(found), flush=True)
