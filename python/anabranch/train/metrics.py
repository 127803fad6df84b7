# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`metrics.jsonl`: one JSON object a line, flushed as written, consistent after a kill and a resume."""

import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FILE = "metrics.jsonl"

# Scalars of a step line that TensorBoard shows, each under the same name.
_CURVES = (
    "loss", "bits_per_byte", "grad_norm", "learning_rate", "tokens_per_second", "model_tflops", "mfu",
    "rss_gib", "skipped_steps",
)  # fmt: skip


class MetricsLog:
    """Appends to a run's `metrics.jsonl` and, if wanted, to TensorBoard event files beside it."""

    def __init__(self, run_dir: Path, *, resume_step: int | None, tensorboard: bool) -> None:
        """Opens the log; with `resume_step` everything that a killed run wrote past that step is dropped first."""
        path = run_dir / FILE
        if resume_step is not None:
            truncate(path, resume_step)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._events = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            purge = None if resume_step is None else resume_step + 1
            self._events = SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge)

    def write(self, record: dict[str, Any]) -> None:
        """Writes one line; a float that is not finite becomes null."""
        self._file.write(json.dumps(finite(record), allow_nan=False) + "\n")
        self._file.flush()
        if self._events is not None:
            self._write_events(record)

    def sync(self) -> None:
        """Makes sure that what was written outlives a crash of the machine."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the files."""
        self.close()

    def _write_events(self, record: dict[str, Any]) -> None:
        step = record.get("step")
        if step is None:
            return
        event = record.get("event")
        names = ("held_out_loss", "held_out_bits_per_byte") if event == "eval" else _CURVES
        for name in names:
            if isinstance(record.get(name), int | float):
                self._events.add_scalar(name, record[name], step)
        for layer, value in enumerate(record.get("max_violation", ())):
            self._events.add_scalar(f"max_violation/layer_{layer}", value, step)
        if event == "sample":
            self._events.add_text("sample", record["text"], step)


class NoLog:
    """In place of a `MetricsLog` where another process writes."""

    def write(self, record: dict[str, Any]) -> None:
        """Does nothing."""

    def sync(self) -> None:
        """Does nothing."""


def truncate(path: Path, step: int) -> None:
    """Drops every line past `step`, the line a kill cut in half, and the mark of a finished run."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    kept = [line for line in lines if _belongs(_parse(line), step)]
    temporary = path.with_suffix(".writing")
    with open(temporary, "wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _belongs(record: dict[str, Any] | None, step: int) -> bool:
    if record is None or record.get("event") == "finished":
        return False
    return record.get("step") is None or record["step"] <= step


def finite(value: Any) -> Any:
    """The same JSON-able value with null for every float that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def read(run_dir: Path) -> list[dict[str, Any]]:
    """All records of a run's log, without a last line that a kill cut in half; empty when there is no log."""
    try:
        lines = (run_dir / FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [record for record in map(_parse, lines) if record is not None]


def seconds_until(run_dir: Path, step: int) -> float:
    """Seconds that a run had taken when it logged `step`, or the last step before it."""
    logged = [r for r in read(run_dir) if "event" not in r and r["step"] <= step]
    return logged[-1].get("seconds", 0.0) if logged else 0.0
