# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Progress as lines of a log file."""

from __future__ import annotations

import math
from typing import TextIO

from anabranch.train.progress.state import State

_INTERVAL = 5.0  # seconds between two step lines


class PlainView:
    """Lines for a log file: each phase once, then a step every few seconds."""

    def __init__(self, stream: TextIO, state: State) -> None:
        self._stream, self._state = stream, state
        self._told = -math.inf
        self._closed = False
        self._pending = False

    def phase_began(self) -> None:
        """A phase began."""
        if self._pending and self._due():
            self._tell_step()
        if not self._state.step:
            self._write(f"{self._state.phase} ...")

    def phase_ended(self, phase: str, seconds: float) -> None:
        """Says how long it took, when that was long enough to wonder."""
        if seconds >= 1 and not self._state.step:
            self._write(f"  took {seconds:.1f} s")

    def stepped(self) -> None:
        """A step was taken."""
        self._pending = True
        if self._due() or self._state.step >= self._state.total_steps:
            self._tell_step()

    def note(self, text: str) -> None:
        """Writes a line that stays."""
        self._write(text)

    def close(self) -> None:
        """Ends the display."""
        if self._pending:
            self._tell_step()
        self._closed = True

    def _due(self) -> bool:
        return self._state.clock() - self._told >= _INTERVAL

    def _tell_step(self) -> None:
        state = self._state
        facts = "  ".join(f"{name} {value}" for name, value in state.facts())
        width = len(str(state.total_steps))
        self._write(f"step {state.step:{width}}/{state.total_steps}  {facts}".rstrip())
        self._told, self._pending = state.clock(), False

    def _write(self, text: str) -> None:
        if not self._closed:
            print(text, file=self._stream, flush=True)
