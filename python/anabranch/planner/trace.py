# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Time lines in Chrome's trace format, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

STREAMS = ("compute", "expert parallel", "tensor parallel", "data parallel", "pipeline",
           "host to device", "device to host")  # fmt: skip
KINDS = (
    "attention", "attention backward", "weight gradients", "shared expert", "experts",
    "experts backward", "recompute", "head", "optimizer", "dispatch", "combine", "tensor parallel",
    "parameter gather", "gradient scatter", "send", "offload", "reload",
)  # fmt: skip
_COMPUTE, _EP = 0, 1
_NETWORK = (1, 2, 3, 4)


def perfetto(tasks: Sequence[Sequence[float]], result: Mapping[str, Any]) -> str:
    """One process per rank class (a pipeline stage's busiest rank), one thread per stream.

    `tasks` are the engine's: class, stream, kind, layer, microbatch, start, end in seconds. Counters
    show how many collectives are in flight and whether the multiply units work.
    """
    events: list[dict[str, Any]] = []
    classes = sorted({int(task[0]) for task in tasks})
    for rank_class in classes:
        name = f"stage {rank_class}, busiest rank"
        events.append(_meta("process_name", rank_class, 0, name))
        used = sorted({int(task[1]) for task in tasks if int(task[0]) == rank_class})
        events += [_meta("thread_name", rank_class, s, STREAMS[s]) for s in used]
    changes: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for task in tasks:
        rank_class, stream, kind, layer, microbatch = (int(value) for value in task[:5])
        start, end = task[5] * 1e6, task[6] * 1e6
        events.append({
            "ph": "X", "pid": rank_class, "tid": stream, "ts": start, "dur": end - start,
            "name": KINDS[kind], "args": {"layer": layer, "microbatch": microbatch},
        })  # fmt: skip
        counter = (
            "collectives" if stream in _NETWORK else "compute" if stream == 0 else "host copies"
        )
        changes.setdefault((rank_class, counter), []).extend(((start, 1), (end, -1)))
    for (rank_class, counter), steps in sorted(changes.items()):
        events += _counter(rank_class, counter, steps)
    metadata = {k: result[k] for k in ("model", "hardware", "recipe", "layout", "step_seconds",
                                       "calibration")}  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "metadata": metadata})


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _counter(process: int, name: str, steps: list[tuple[float, int]]) -> list[dict[str, Any]]:
    events, now = [], 0
    for at, change in sorted(steps):
        now += change
        if events and events[-1]["ts"] == at:
            events[-1]["args"]["running"] = now
        else:
            events.append({"ph": "C", "pid": process, "tid": 0, "ts": at, "name": name,
                           "args": {"running": now}})  # fmt: skip
    return events
