# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What a run prints: plain lines without a terminal, one live line on a terminal."""

from __future__ import annotations

import io
import math
import re

import pytest

from anabranch.train.progress import Progress
from anabranch.train.progress.state import clock_text


class _Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock():
    return _Clock()


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    return _Terminal()


def _metrics(step, **more):
    numbers = {"loss": 3.25, "bits_per_byte": 4.6889, "tokens_per_second": 41_234.6, "mfu": 0.4567}
    return {"step": step, "step_seconds": 0.5, **numbers, "skipped_steps": 0, **more}


def _run(progress, clock, steps, seconds):
    for step in range(1, steps + 1):
        clock.now += seconds
        progress.step(_metrics(step))


def test_plain_lines(clock):
    stream = io.StringIO()
    progress = Progress(100, stream, clock=clock)
    progress.phase("opening the corpus")
    clock.now += 0.2
    progress.phase("compiling the training step")
    clock.now += 12.5
    _run(progress, clock, 100, 0.5)
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[:3] == [
        "opening the corpus ...",
        "compiling the training step ...",
        "  took 13.0 s",
    ]
    assert lines[3] == (
        "step   1/100  loss 3.250  bits/byte 4.689  tokens/s 41,235  MFU 45.7%  left 0:50"
    )
    assert lines[-1] == "step 100/100  loss 3.250  bits/byte 4.689  tokens/s 41,235  MFU 45.7%"
    assert len(lines) == 3 + 11  # the first step, one each five seconds, the last one


def test_plain_output_has_no_control_characters(clock):
    stream = io.StringIO()
    with Progress(3, stream, clock=clock) as progress:
        progress.phase("waiting")
        _run(progress, clock, 3, 10)
        progress.note("checkpoint step-2 is incomplete, skipped")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", stream.getvalue())
    assert stream.getvalue().isascii()
    assert "checkpoint step-2 is incomplete, skipped\n" in stream.getvalue()


def test_plain_shows_the_last_step_of_an_interrupted_run(clock):
    stream = io.StringIO()
    with Progress(100, stream, clock=clock) as progress:
        _run(progress, clock, 7, 0.1)
    assert stream.getvalue().splitlines()[-1].startswith("step   7/100")


def test_plain_is_silent_about_phases_between_steps(clock):
    stream = io.StringIO()
    with Progress(10, stream, clock=clock) as progress:
        _run(progress, clock, 2, 0.1)
        progress.phase("evaluating on held-out text")
        clock.now += 3
    assert "evaluating" not in stream.getvalue()


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "x"])
def test_non_finite_values_are_named(clock, value):
    stream = io.StringIO()
    with Progress(5, stream, clock=clock) as progress:
        progress.step(_metrics(1, loss=value, skipped_steps=1, step_seconds=value))
        progress.step({})
    assert "loss not finite" in stream.getvalue()
    assert "skipped 1" in stream.getvalue()


def test_nothing_is_written_before_use_and_after_close(clock, terminal):
    for stream in (io.StringIO(), terminal):
        progress = Progress(5, stream, clock=clock)
        assert stream.getvalue() == ""
        progress.close()
        progress.close()
        before = stream.getvalue()
        progress.phase("late")
        progress.step(_metrics(1))
        progress.close()
        assert stream.getvalue() == before


def test_time_left_counts_the_steps_of_this_process(clock):
    stream = io.StringIO()
    with Progress(1000, stream, clock=clock) as progress:
        progress.step(_metrics(501, step_seconds=2.0))
        clock.now += 100
        progress.step(_metrics(601))
    assert [line.split("left ")[1] for line in stream.getvalue().splitlines()] == ["16:38", "6:39"]


def test_terminal_shows_phases_then_a_line(clock, terminal):
    progress = Progress(10, terminal, clock=clock)
    progress.phase("compiling the training step")
    clock.now += 4.2
    _run(progress, clock, 10, 0.5)
    progress.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "✓ compiling the training step 4.7 s" in text
    assert "step 10/10" in text and "loss 3.250" in text and "MFU 45.7%" in text
    assert "\x1b[" in terminal.getvalue()
    assert terminal.getvalue().rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")


@pytest.mark.parametrize("columns", ["10", "40", "60", "80", "200"])
def test_terminal_line_fits_its_width(clock, terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    with Progress(12_345, terminal, clock=clock) as progress:
        progress.step(_metrics(9_999, skipped_steps=3))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    lines = re.split(r"[\r\n]+", text)
    assert all(len(line) <= int(columns) for line in lines)
    if columns != "10":
        assert "bits/byte 4.689" in text


def test_no_color_is_respected(clock, terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with Progress(10, terminal, clock=clock) as progress:
        progress.phase("waiting")
        progress.step(_metrics(5, loss=math.nan))
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]m", terminal.getvalue())


def test_dumb_terminal_gets_plain_lines(clock, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress(2, terminal, clock=clock) as progress:
        _run(progress, clock, 2, 1)
    assert "\x1b" not in terminal.getvalue()


def test_clock_text():
    shown = [clock_text(seconds) for seconds in (0.4, 61.5, 3600, 7325, math.nan)]
    assert shown == ["0:00", "1:02", "1:00:00", "2:02:05", ""]
