# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What a training run tells the person who watches it.

On a terminal one live line: what the run waits for, then step, loss, speed and time left. Anywhere
else plain lines, few of them and without control characters.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from anabranch.train.progress.live import LiveView
from anabranch.train.progress.plain import PlainView
from anabranch.train.progress.state import State

__all__ = ["Progress"]


class Progress:
    """Shows a run of `total_steps` on `stream` (default: stderr); also a context manager.

    `clock` returns seconds. Nothing is written before the first call, nor after `close`.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._state = State(total_steps, clock)
        stream = sys.stderr if stream is None else stream
        self._view = (LiveView if _is_terminal(stream) else PlainView)(stream, self._state)
        atexit.register(self.close)  # a hidden cursor must come back, whatever ends the process

    def phase(self, text: str) -> None:
        """Says what the run is waiting for, until the next step or phase."""
        self._end_phase()
        self._state.phase, self._state.phase_began = text, self._clock()
        self._view.phase_began()

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Shows a step: the keys are those of a line of `metrics.jsonl`; missing ones are left out."""
        self._end_phase()
        self._state.advance(metrics)
        self._view.stepped()

    def note(self, text: str) -> None:
        """Leaves a line of text that stays."""
        self._view.note(text)

    def close(self) -> None:
        """Ends the display, with the last step left visible; a second call does nothing."""
        self._end_phase()
        self._view.close()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the display."""
        self.close()

    def _end_phase(self) -> None:
        phase, seconds = self._state.phase, self._state.waited()
        if phase:
            self._state.phase = ""
            self._view.phase_ended(phase, seconds)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, ValueError):
        return False
