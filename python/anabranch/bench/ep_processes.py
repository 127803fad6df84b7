# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Dispatch and combine between two processes that mpirun starts: the rows ``*_mpi`` of suite ``ep``.

Beside them what programs do without a fused pass, in turn in the same processes: ``*_alltoallv`` pack rows
by rank, call ``MPI_Alltoallv`` and unpack by expert, ``*_tuned`` pack and unpack past the caches, and
``alltoallv`` is the call alone. ``rows`` starts this module under mpirun; rank 0 then prints the durations as
JSON.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from anabranch import _processes, engine
from anabranch.bench import ep, mpi_exchange, mpi_launch
from anabranch.bench.timing import Timing, summary

_ROUNDS = 9


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``dispatch_mpi``, ``combine_mpi`` and those beside them; none, with a note, where there is no MPI.

    ``times_dispatch`` and ``times_combine`` of the latter: their time over that of the fused pass.
    """
    durations, busy = mpi_launch.observed("anabranch.bench.ep_processes", ep.RANKS)
    timings = {name: Timing(*summary(seconds), busy) for name, seconds in durations.items()}
    for name, timing in timings.items():
        if name == "copy":
            continue
        row = ep.row(name, timing, timings["copy"].seconds)
        for fused in ("dispatch", "combine"):
            if name.startswith((f"{fused}_alltoallv", "alltoallv")):
                row[f"times_{fused}"] = timing.seconds / timings[f"{fused}_mpi"].seconds
        yield row


def main() -> None:
    """One rank."""
    group = _processes.start_processes()
    case = ep.Case(list(jax.devices()))
    plan = jax.block_until_ready(case.mapped(case.plan)(case.ids))
    dispatched = jax.block_until_ready(case.mapped(case.dispatch_once)(case.x, *plan))
    back = case.mapped(case.combine)(dispatched, *plan)
    expected = _expected(case, group.rank)
    _check(expected, dispatched, back)
    copy = ep.payload_copy(max(1, engine.num_threads() // group.size))
    calls = {
        "copy": functools.partial(_together, copy),
        "dispatch_mpi": case.timer(case.dispatch, (case.x, *plan)),
        "combine_mpi": case.timer(case.combine, (dispatched, *plan)),
        **mpi_exchange.calls(case, group.rank, expected),
    }
    durations: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            durations[name].append(call())
    if group.rank == 0:
        mpi_launch.report(durations)
    _processes.end()


def _together(run: Callable[[], object]) -> float:
    """Seconds until every rank has run it."""
    _processes.gather("begin", b"")
    start = time.perf_counter()
    run()
    _processes.gather("end", b"")
    return time.perf_counter() - start


def _expected(case: ep.Case, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A rank's rows in expert order, and the sum of the rows of each of its tokens."""
    local = ep.EXPERTS // ep.RANKS
    experts = case.ids_host.reshape(-1)
    slots = np.argsort(experts, kind="stable")
    mine = slots[experts[slots] // local == rank] // ep.TOPK
    x = case.x_host[rank * ep.TOKENS : (rank + 1) * ep.TOKENS]
    # Exact in any order: k is a power of two.
    return case.x_host[mine], (np.float32(ep.TOPK) * x.astype(np.float32)).astype(x.dtype)


def _check(expected: tuple[np.ndarray, np.ndarray], dispatched: jax.Array, back: jax.Array) -> None:
    """Every bit of this rank's rows, and of what comes back of them."""
    rows = np.asarray(dispatched.addressable_data(0))[: len(expected[0])]
    sums = np.asarray(back.addressable_data(0))
    if not ((rows == expected[0]).all() and (sums == expected[1]).all()):
        raise RuntimeError("bench: rows between processes are not those that were sent")


if __name__ == "__main__":
    main()
