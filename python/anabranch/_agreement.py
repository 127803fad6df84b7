# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What the processes of a run agree on, and what the first of them does for all.

The first process reads and writes the run folder and talks to the person; the others train. In a run of one
process every function here does the obvious.
"""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from anabranch import _processes
from anabranch.errors import RunError, UsageError

# What a process says while the first works for all.
_WORKS, _DONE, _WAITS = b"w", b"d", b" "
_SIGNS_PER_TIMEOUT = 4


def count() -> int:
    """Processes of this run."""
    group = _processes.started()
    return 1 if group is None else group.size


def is_first() -> bool:
    """Whether this process is the one that writes."""
    group = _processes.started()
    return group is None or group.rank == 0


def from_first(name: str, function: Callable[[], Any]) -> Any:
    """What `function` returns in the first process, in every process: JSON-able. `name` stands in errors.

    Its UsageError and RunError are raised in every process. It may take any time: the first process tells the
    others that it lives.
    """
    if count() == 1:
        return function()
    outcome: dict[str, Any] = {}
    if is_first():
        with _signs_of_life(name):
            try:
                outcome = {"value": function()}
            except (UsageError, RunError) as error:
                outcome = {"error": str(error), "usage": isinstance(error, UsageError)}
    else:
        while _gather(name, _WAITS)[0] == _WORKS:
            pass
    outcome = json.loads(_gather_any(name, json.dumps(outcome).encode())[0])
    if "error" in outcome:
        raise (UsageError if outcome["usage"] else RunError)(outcome["error"])
    return outcome["value"]


@contextlib.contextmanager
def _signs_of_life(name: str) -> Iterator[None]:
    """Of the first process, while the others wait: each is a gather, and so is the end of them.

    A thread gives them, so they stop when the process stops, and not while one call takes long.
    """
    ended = threading.Event()

    def give() -> None:
        # An error is one of all ranks and comes back at the next call.
        with contextlib.suppress(RunError):
            while not ended.wait(_processes.timeout() / _SIGNS_PER_TIMEOUT):
                _gather(name, _WORKS)

    thread = threading.Thread(target=give, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    _gather(name, _DONE)


def first_then_others(name: str, function: Callable[[], Any]) -> Any:
    """`function()` of every process, in the first before the others: what it leaves on disk, they find."""
    results: list[Any] = []
    from_first(name, lambda: results.append(function()))
    return results[0] if is_first() else function()


def any_process(name: str, flag: bool) -> bool:
    """Whether `flag` is set in any process."""
    if count() == 1:
        return flag
    return b"1" in _gather(name, b"1" if flag else b"0")


def require_equal(values: dict[str, Any]) -> None:
    """UsageError that names the first of `values` that differs between two processes, in every process."""
    if count() == 1:
        return
    everybody = [json.loads(text) for text in _gather_any("start", json.dumps(values).encode())]
    for rank, theirs in enumerate(everybody):
        for name in sorted({*everybody[0], *theirs}):
            ours = everybody[0].get(name)
            if theirs.get(name) != ours:
                raise UsageError(
                    f"rank {rank} was started with {name}={theirs.get(name)}, rank 0 with "
                    f"{name}={ours}; all ranks must be started alike"
                )


def gather_rows(name: str, rows: np.ndarray) -> np.ndarray:
    """The arrays of all processes, one after the other along the first axis."""
    rows = np.ascontiguousarray(rows)
    parts = _gather(name, rows.tobytes())
    return np.concatenate([np.frombuffer(part, rows.dtype).reshape(rows.shape) for part in parts])


@contextlib.contextmanager
def step(number: int) -> Iterator[None]:
    """A training step: an error that another rank causes inside becomes a RunError with its number."""
    if count() == 1:
        yield
        return
    _processes.set_step(number)
    try:
        yield
    except (_processes.ProcessError, jax.errors.JaxRuntimeError, ValueError) as error:
        raise _failed(error) from error


def _gather(name: str, mine: bytes) -> list[bytes]:
    try:
        return _processes.gather(name, mine)
    except _processes.ProcessError as error:
        raise _failed(error) from error


def _gather_any(name: str, mine: bytes) -> list[bytes]:
    """Like `_gather`, of any lengths."""
    lengths = [int(part) for part in _gather(name, b"%16d" % len(mine))]
    parts = _gather(name, mine.ljust(max(lengths)))
    return [part[:length] for part, length in zip(parts, lengths, strict=True)]


def _failed(error: Exception) -> RunError:
    group, step = _processes.started(), _processes.current_step()
    where = f"step {step}" if step else ""
    text = re.sub(r"^[A-Z_]+: ", "", str(error).split("\n")[0])  # XLA's name of the kind of error
    return RunError(": ".join(part for part in (f"rank {group.rank}", where, text) if part))
