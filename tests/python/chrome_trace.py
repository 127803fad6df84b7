# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Chrome's trace event format, as strictly as a viewer can read it."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def check(text: str) -> list[dict[str, Any]]:
    """Asserts what Perfetto needs of a trace of spans and counters; returns the events.

    Perfetto reads times as whole nanoseconds, takes what begins inside another span of a thread for a
    part of it, and drops what ends outside.
    """
    document = json.loads(text, parse_constant=_refuse)
    assert set(document) == {"traceEvents", "displayTimeUnit", "metadata"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    for event in events:
        _check_fields(event)
    processes = [e["pid"] for e in events if e["name"] == "process_name"]
    assert len(processes) == len(set(processes)) and set(processes) == {e["pid"] for e in events}
    threads = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    assert len(threads) == len(set(threads))
    spans = [e for e in events if e["ph"] == "X"]
    assert spans and [e["ts"] for e in spans] == sorted(e["ts"] for e in spans)
    ends: dict[tuple[int, int], int] = defaultdict(int)
    for event in spans:
        thread = (event["pid"], event["tid"])
        assert thread in threads
        begin = _nanoseconds(event["ts"])
        assert begin >= ends[thread], event
        ends[thread] = begin + _nanoseconds(event["dur"])
    _check_counters([e for e in events if e["ph"] == "C"])
    return events


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _check_fields(event: dict[str, Any]) -> None:
    more = {"X": {"ts", "dur"}, "C": {"ts", "args"}, "M": {"args"}}[event["ph"]]
    assert set(event) - {"args"} == ({"ph", "pid", "tid", "name"} | more) - {"args"}, event
    assert more <= set(event), event
    assert type(event["pid"]) is int and type(event["tid"]) is int and event["pid"] >= 0
    assert isinstance(event["name"], str) and event["name"]
    for time in more & {"ts", "dur"}:
        assert _nanoseconds(event[time]) >= 0, event
    if event["ph"] == "M":
        kinds = {"process_name": str, "thread_name": str, "thread_sort_index": int}
        ((_, value),) = event["args"].items()
        assert type(value) is kinds[event["name"]], event


def _nanoseconds(microseconds: float) -> int:
    nanoseconds = microseconds * 1000
    assert type(microseconds) in (int, float) and nanoseconds == int(nanoseconds), microseconds
    return int(nanoseconds)


def _check_counters(events: list[dict[str, Any]]) -> None:
    series: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        series[event["pid"], event["name"]].append(event)
    for steps in series.values():
        times = [event["ts"] for event in steps]
        assert times == sorted(set(times))
        values = [event["args"]["running"] for event in steps]
        assert all(type(value) is int and value >= 0 for value in values) and values[-1] == 0
