# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Waves hide a slow dispatch: read off the time line of two processes, and the time line itself."""

import os
import sys

import pytest

import chrome_trace
from anabranch import engine
from anabranch.bench import ep_waves
from anabranch.engine import Span
from test_processes import needs_mpi, start

# The delay is a wait without work and products take several times as long: a busy machine stretches
# products and so hides no less.
RECORD = """
import pathlib, sys
from anabranch import _processes
group = _processes.start_processes()
from anabranch.bench import ep_waves
step = ep_waves.layer(8)
step()
lines = ep_waves.record(step, 8)
if group.rank == 0:
    pathlib.Path("trace.json").write_text(ep_waves.perfetto(lines))
    sys.stdout.write(f"hidden {min(map(ep_waves.hidden, lines))}\\n")
    sys.stdout.flush()
_processes.end()
"""


@needs_mpi
def test_eight_waves_hide_most_of_a_delayed_dispatch(tmp_path):
    (tmp_path / "record.py").write_text(RECORD)
    # One thread for XLA: products take long on machines with many cores, too.
    environment = {"XLA_FLAGS": "", "NPROC": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    out, err = start(2, "record.py", folder=tmp_path, **environment).communicate(timeout=400)
    hidden = [line.split()[1] for line in out.splitlines() if line.startswith("hidden ")]
    assert len(hidden) == 1, (out, err)
    assert float(hidden[0]) >= 0.7
    events = chrome_trace.check((tmp_path / "trace.json").read_text())
    for rank in (0, 1):
        mine = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        names = [event["name"] for event in mine]
        # Forward and backward, each in eight waves; a delay each.
        assert names.count("expert_parallel_dispatch") == 16
        assert names.count("moe_ffn_rows") == names.count("moe_ffn_rows_grad") == 8
        delay = 1e6 * ep_waves.DELAY_SECONDS / 8
        assert all(e["dur"] >= delay for e in mine if e["name"] == "expert_parallel_dispatch")


def spans(*rows):
    names = {"exchange": "expert_parallel_dispatch", "products": "moe_ffn_rows"}
    return [Span(track, names[track], 0, begin, end) for track, begin, end in rows]


@pytest.mark.parametrize(
    ("products", "share"),
    [([], 0), ([(0, 1)], 0), ([(2, 4)], 0.5), ([(0, 3), (2, 4), (5, 9)], 1), ([(3, 5)], 0.25)],
)
def test_what_products_cover_is_hidden(products, share):
    line = spans(
        ("exchange", 1, 4), ("exchange", 5, 6), *(("products", *times) for times in products)
    )
    assert ep_waves.hidden(line) == share


def test_a_time_line_begins_with_its_first_span_and_names_its_tracks():
    lines = [spans(("products", 5.0, 5.5)), spans(("exchange", 5.25, 6.0))]
    events = chrome_trace.check(ep_waves.perfetto(lines))
    assert [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"] == [
        (0, "rank 0"),
        (1, "rank 1"),
    ]
    drawn = [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert drawn == [(0, 1, 0, 0.5e6), (1, 0, 0.25e6, 0.75e6)]


def test_nothing_is_recorded_but_inside_the_time_line():
    with engine.timeline() as recorded:
        pass
    assert recorded == []
