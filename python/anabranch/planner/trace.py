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
_NETWORK = (1, 2, 3, 4)


def perfetto(tasks: Sequence[Sequence[float]], result: Mapping[str, Any]) -> str:
    """One process per rank class (a pipeline stage's busiest rank), one thread per stream.

    `tasks` are the engine's: class, stream, kind, layer, microbatch, start, end in seconds. Counters
    show how many collectives are in flight and whether the multiply units work.
    """
    events: list[dict[str, Any]] = []
    classes = sorted({int(task[0]) for task in tasks})
    for rank_class in classes:
        used = {int(task[1]): STREAMS[int(task[1])] for task in tasks if int(task[0]) == rank_class}
        events += names(rank_class, f"stage {rank_class}, busiest rank", used)
    spans: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for task in sorted(tasks, key=lambda task: task[5]):
        rank_class, stream, kind, layer, microbatch = (int(value) for value in task[:5])
        event = span(rank_class, stream, KINDS[kind], task[5], task[6])
        events.append(event | {"args": {"layer": layer, "microbatch": microbatch}})
        counted = (
            "collectives" if stream in _NETWORK else "compute" if stream == 0 else "host copies"
        )
        spans.setdefault((rank_class, counted), []).append((task[5], task[6]))
    for (rank_class, counted), pairs in sorted(spans.items()):
        events += counter(rank_class, counted, pairs)
    metadata = {k: result[k] for k in ("model", "hardware", "recipe", "layout", "step_seconds",
                                       "calibration")}  # fmt: skip
    return document(events, metadata)


def document(events: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> str:
    """The file's text."""
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "metadata": metadata})


def names(process: int, name: str, threads: Mapping[int, str]) -> list[dict[str, Any]]:
    """Events that name a process and its threads, which a viewer shows in this order."""
    events = [{"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}]
    for thread, label in sorted(threads.items()):
        where = {"ph": "M", "pid": process, "tid": thread}
        events.append({**where, "name": "thread_name", "args": {"name": label}})
        events.append({**where, "name": "thread_sort_index", "args": {"sort_index": thread}})
    return events


def span(process: int, thread: int, name: str, start: float, end: float) -> dict[str, Any]:
    """What `thread` did from `start` to `end`, seconds."""
    begin = _microseconds(start)
    return {"ph": "X", "pid": process, "tid": thread, "ts": begin,
            "dur": _microseconds(end) - begin, "name": name}  # fmt: skip


def counter(process: int, name: str, spans: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """How many of `spans` (start, end) run at a time."""
    changes: dict[float, int] = {}
    for start, end in spans:
        changes[_microseconds(start)] = changes.get(_microseconds(start), 0) + 1
        changes[_microseconds(end)] = changes.get(_microseconds(end), 0) - 1
    events, running = [], 0
    for at, change in sorted(changes.items()):
        running += change
        events.append({"ph": "C", "pid": process, "tid": 0, "ts": at, "name": name,
                       "args": {"running": running}})  # fmt: skip
    return events


def _microseconds(seconds: float) -> float:
    """Rounds to an eighth: whole nanoseconds, and exact in binary.

    Else the end of a span could lie after the start of the next in a viewer, which would take one for
    a part of the other.
    """
    return round(seconds * 8e6) / 8
