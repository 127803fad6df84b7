# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine between two processes that mpirun starts: the rows ``*_mpi`` of suite ``ep``.

``rows`` starts this module under mpirun; rank 0 then prints the durations as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from anabranch import _processes
from anabranch.bench import ep
from anabranch.bench.timing import Timing, observe, summary

_MARK = "durations: "
_TIMEOUT_SECONDS = 600


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``dispatch_mpi`` and ``combine_mpi``; none, with a note, where there is no MPI."""
    mpirun = shutil.which("mpirun")
    if mpirun is None or not _processes.module_path().exists():
        missing = "mpirun" if mpirun is None else str(_processes.module_path())
        print(f"note: no rows between processes: there is no {missing}", file=sys.stderr)
        return
    durations: dict[str, list[float]] = {}

    def run() -> list[float]:
        command = [
            mpirun,
            "-np",
            str(ep.RANKS),
            sys.executable,
            "-m",
            "anabranch.bench.ep_processes",
        ]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS,
            env={**os.environ, **_processes.LAUNCHER_ENVIRONMENT},
        )  # fmt: skip
        found = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
        if result.returncode or len(found) != 1:
            raise RuntimeError(f"bench: {' '.join(command)} failed: {result.stderr[-400:]}")
        durations.update(json.loads(found[0][len(_MARK) :]))
        return durations["dispatch_mpi"]

    busy = observe(run).busy_cores
    for name, seconds in durations.items():
        yield ep.row(name, Timing(*summary(seconds), busy))


def main() -> None:
    """One rank."""
    group = _processes.start_processes()
    case = ep.Case(list(jax.devices()))
    plan = jax.block_until_ready(case.mapped(case.plan)(case.ids))
    dispatched = jax.block_until_ready(case.mapped(case.dispatch_once)(case.x, *plan))
    back = case.mapped(case.combine)(dispatched, *plan)
    _check(case, dispatched, back, group.rank)
    durations = {
        "dispatch_mpi": case.repeat(case.dispatch, (case.x, *plan)),
        "combine_mpi": case.repeat(case.combine, (dispatched, *plan)),
    }
    if group.rank == 0:
        print(_MARK + json.dumps(durations), flush=True)
    _processes.end()


def _check(case: ep.Case, dispatched: jax.Array, back: jax.Array, rank: int) -> None:
    """Every bit of this rank's rows, and of what comes back of them."""
    local = ep.EXPERTS // ep.RANKS
    experts = case.ids_host.reshape(-1)
    slots = np.argsort(experts, kind="stable")
    mine = slots[experts[slots] // local == rank] // ep.TOPK
    rows = np.asarray(dispatched.addressable_data(0))
    x = case.x_host[rank * ep.TOKENS : (rank + 1) * ep.TOKENS]
    sums = (np.float32(ep.TOPK) * x.astype(np.float32)).astype(
        x.dtype
    )  # exact: k is a power of two
    if (
        not (rows[: len(mine)] == case.x_host[mine]).all()
        or not (np.asarray(back.addressable_data(0)) == sums).all()
    ):
        raise RuntimeError("bench: rows between processes are not those that were sent")


if __name__ == "__main__":
    main()
