# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Progress as one line of a terminal."""

from __future__ import annotations

from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from anabranch.train.progress.state import State

_FACTS_WIDTH = 72  # columns of all facts; what is left over goes to the bar


class LiveView:
    """One line that redraws itself, also while the run waits in a long call."""

    def __init__(self, stream: TextIO, state: State) -> None:
        self._state = state
        self._console = Console(file=stream, force_terminal=True, highlight=False, soft_wrap=False)
        self._live = Live(
            self, console=self._console, refresh_per_second=8, redirect_stdout=stream.isatty()
        )
        self._spinner = Spinner("dots" if self._unicode() else "line", style="cyan")
        self._closed = False

    def phase_began(self) -> None:
        """A phase began."""
        self._show()

    def phase_ended(self, phase: str, seconds: float) -> None:
        """Keeps the phases before the first step on the screen, with their time."""
        if not self._state.step and not self._closed:
            mark = "✓" if self._unicode() else "-"
            done = Text.assemble((mark, "green"), f" {phase} ", (f"{seconds:.1f} s", "dim"))
            self._console.print(done)

    def stepped(self) -> None:
        """A step was taken."""
        self._show()

    def note(self, text: str) -> None:
        """Writes a line that stays."""
        self._console.print(Text(text))

    def close(self) -> None:
        """Ends the display."""
        if self._live.is_started:
            self._live.stop()
        self._closed = True

    def _show(self) -> None:
        if not self._closed and not self._live.is_started:
            self._live.start()

    def _unicode(self) -> bool:
        return self._console.encoding.startswith("utf")

    def __rich__(self) -> Table | Text:
        """Returns the line as it is now."""
        state = self._state
        if not state.metrics:
            return self._waiting()
        width = len(str(state.total_steps))
        count = f"step {state.step:{width}}/{state.total_steps}"
        room = self._console.width - len(count) - 1
        bar = min(30, room - _FACTS_WIDTH)
        line = Table.grid(padding=(0, 1, 0, 0))
        cells: list[Any] = [count]
        if bar >= 6:
            cells.append(ProgressBar(state.total_steps, state.step, width=bar))
            room -= bar + 1
        cells.append(self._facts(room))
        line.add_row(*cells)
        return line

    def _facts(self, room: int) -> Text:
        """Returns what fits into `room` columns; a phase stands in place of the numbers."""
        line = Text(no_wrap=True, overflow="ellipsis")
        if phase := self._state.phase:
            return line.append(phase, "cyan").append(f" {self._state.waited():.0f} s", "dim")
        for name, value in _fitting(self._state.facts(), room):
            colour = "bold red" if value == "not finite" or name == "skipped" else "bold"
            line.append("  " if line else "").append(f"{name} ", "dim").append(value, colour)
        return line

    def _waiting(self) -> Table | Text:
        if not self._state.phase:
            return Text()
        line = Table.grid(padding=(0, 1))
        waited = Text.assemble(self._state.phase, (f" {self._state.waited():.0f} s", "dim"))
        line.add_row(self._spinner, waited)
        return line


def _fitting(facts: list[tuple[str, str]], room: int) -> list[tuple[str, str]]:
    """Drops the least important facts until the rest fits into `room` columns."""
    for name in ("MFU", "tokens/s", "loss", "left"):
        if sum(len(fact) + len(value) + 3 for fact, value in facts) - 2 <= room:
            break
        facts = [fact for fact in facts if fact[0] != name]
    return facts
