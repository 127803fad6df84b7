# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Measured training steps (`rows.csv`), and how far the simulator is from each of them."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import importlib.resources
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anabranch.errors import UsageError

# The columns of the public interface; the last three may be left out of a file.
COLUMNS = (
    "id", "model", "hw", "count", "recipe", "layout", "gbs", "mbs", "seq", "imbalance",
    "tokens_per_second_per_gpu", "tflops_per_gpu", "step_seconds", "memory_gib",
)  # fmt: skip
OPTIONAL = ("stack", "options", "source")
_COUNTS = ("count", "gbs", "mbs", "seq")
_MEASURED = ("tokens_per_second_per_gpu", "tflops_per_gpu", "step_seconds", "memory_gib")
_MAY_BE_BLANK = ("layout", "gbs", "mbs", "seq", "imbalance", *_MEASURED, *OPTIONAL)
# What reports call routing that was made even.
_BALANCED = ("balanced", "forced", "uniform", "none")


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured run. Measured values are None where not given.

    `mbs` 0 means: one microbatch a step. A row whose `gbs` or `seq` is 0 cannot be simulated.

    `stack` is the software that ran it ("" if not said), `options` layout words such as "overlap=off".
    """

    id: str
    model: str
    hw: str
    count: int
    recipe: str
    layout: str
    gbs: int
    mbs: int
    seq: int
    imbalance: str
    tokens_per_second_per_gpu: float | None
    tflops_per_gpu: float | None
    step_seconds: float | None
    memory_gib: float | None
    stack: str = ""
    options: str = ""
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Score:
    """What the simulator says of a row. Errors are relative: 0.1 is a step predicted 10 % too long.

    `refused` is why the row could not be simulated, "" if it could; errors are then None, as they
    are for what was not measured. A row that ran although the simulator says it does not fit has
    `fits` False.
    """

    row: Row
    calibration: str
    predicted_step_seconds: float | None = None
    measured_step_seconds: float | None = None
    step_error: float | None = None
    predicted_memory_gib: float | None = None
    memory_error: float | None = None
    fits: bool | None = None
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        """The score with the row's id instead of the row."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"id": self.row.id, **{k: v for k, v in values.items() if k != "row"}}


def read(path: Path) -> list[Row]:
    """Reads a CSV of measured rows; UsageError gives line, column, value and rule."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"--rows {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--rows {path}: not UTF-8 text") from error
    return parse(text, str(path))


def published() -> list[Row]:
    """The rows that ship with Anabranch, each with its source."""
    text = (_folder() / "rows.csv").read_text(encoding="utf-8")
    return parse(text, "measured/rows.csv")


def held_out() -> frozenset[str]:
    """Ids of the rows that no parameter is ever fitted to: measured/hold_out.txt."""
    lines = (_folder() / "hold_out.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _folder() -> Any:
    return importlib.resources.files("anabranch.planner") / "measured"


def parse(text: str, name: str) -> list[Row]:
    """Reads the text of a CSV called `name` in messages."""
    reader = csv.DictReader(text.splitlines(), strict=True)
    try:
        records = list(reader)
    except csv.Error as error:
        raise UsageError(f"{name}: line {reader.line_num}: {error}") from error
    _check_header(name, reader.fieldnames or [])
    rows: list[Row] = []
    for number, record in enumerate(records, start=2):
        if None in record or None in record.values():
            raise UsageError(f"{name}: line {number}: has not as many values as there are columns")
        row = _row(f"{name}: line {number}", {k.strip(): v.strip() for k, v in record.items()})
        if row.id in {other.id for other in rows}:
            raise UsageError(f"{name}: line {number}: id={row.id} is there twice")
        rows.append(row)
    if not rows:
        raise UsageError(f"{name}: no rows")
    return rows


def _check_header(name: str, header: Sequence[str]) -> None:
    columns = [column.strip() for column in header]
    missing = [column for column in COLUMNS if column not in columns]
    for column in columns:
        if column not in COLUMNS and column not in OPTIONAL:
            near = difflib.get_close_matches(column, missing or COLUMNS, n=2, cutoff=0.4)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise UsageError(f"{name}: unknown column {column!r}{hint}")
    if missing:
        raise UsageError(f"{name}: missing column {', '.join(missing)}")


def _row(where: str, record: Mapping[str, str]) -> Row:
    values: dict[str, Any] = dict(record)
    for column, text in record.items():
        if not text and column not in _MAY_BE_BLANK:
            raise UsageError(f"{where}: {column} is blank")
    for column in _COUNTS:
        values[column] = _count(f"{where}: {column}", record[column])
    for column in _MEASURED:
        values[column] = _measured(f"{where}: {column}", record[column])
    if all(values[column] is None for column in _MEASURED):
        raise UsageError(f"{where}: nothing measured: one of {', '.join(_MEASURED)} must be given")
    return Row(**values)


def _count(where: str, text: str) -> int:
    if not text:
        return 0
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{where}={text}: must be a positive whole number")
    return int(text)


def _measured(where: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"{where}={text}: must be a positive number, or blank")
    return value


def options_of(row: Row) -> str:
    """The row's layout words; with multi-token prediction when its FLOPs per token say so.

    FLOP/s over tokens/s is the FLOPs of a token, which tell whether DeepSeek-V3's extra block was
    trained, in rows that do not say it.
    """
    from anabranch.planner import subject

    words = row.options
    if row.mbs:
        words = f"mbs{row.mbs};{words}"
    if "mtp" in words or not (row.tokens_per_second_per_gpu and row.tflops_per_gpu):
        return words
    per_token = row.tflops_per_gpu * 1e12 / row.tokens_per_second_per_gpu
    config = subject.get(row.model).model
    counted = [subject.flops_per_token(config, row.seq, mtp_layers=n) for n in (0, 1)]
    nearer = min((0, 1), key=lambda n: abs(per_token / counted[n] - 1))
    # Published pairs agree with our count within 0.5 %; another convention says nothing.
    if nearer == 1 and abs(per_token / counted[1] - 1) < 0.01 and row.model.startswith("d"):
        words += ";mtp1"
    return words


def measured_step_seconds(row: Row) -> float | None:
    """The step's seconds as given, or from tokens or FLOP/s."""
    from anabranch.planner import layout, subject

    if row.step_seconds is not None:
        return row.step_seconds
    tokens = row.gbs * row.seq / row.count
    if row.tokens_per_second_per_gpu is not None:
        return tokens / row.tokens_per_second_per_gpu
    if row.tflops_per_gpu is None:
        return None
    plan = layout.parse(row.layout, options_of(row))
    per_token = subject.flops_per_token(subject.get(row.model).model, row.seq, mtp_layers=plan.mtp)
    return tokens * per_token / (row.tflops_per_gpu * 1e12)


def score(row: Row, parameters: Mapping[str, float] | None = None) -> Score:
    """Simulates the row with its calibration, or with `parameters` of the hardware instead."""
    from anabranch.planner import layout, scenario, simulate

    try:
        if not (row.gbs and row.seq):
            raise UsageError(f"{'seq' if row.gbs else 'gbs'} is not given")
        options = options_of(row)
        if not row.mbs:
            plan = layout.parse(row.layout, options)
            data = max(row.count // (plan.tp * plan.cp * plan.pp), 1)
            options += f";mbs{max(row.gbs // data, 1)}"
        made = scenario.make(
            model=row.model,
            hw=f"{row.hw}:{row.count}",
            recipe=row.recipe.lower(),
            layout_text=row.layout,
            options=options,
            batch=row.gbs,
            sequence=row.seq,
            imbalance="" if row.imbalance.lower() in _BALANCED else row.imbalance,
            stack=row.stack,
        )
        if parameters is not None:
            kind = scenario.hardware.get(row.hw).replace(parameters, "fit")
            made = dataclasses.replace(made, hardware=kind)
        result = simulate.simulate(made)
    except UsageError as error:
        return Score(row, "none", refused=str(error))
    measured = measured_step_seconds(row)
    memory = result["memory_gib_max_rank"]
    return Score(
        row,
        made.calibration.id,
        predicted_step_seconds=result["step_seconds"],
        measured_step_seconds=measured,
        step_error=None if measured is None else result["step_seconds"] / measured - 1,
        predicted_memory_gib=memory,
        memory_error=None if row.memory_gib is None else memory / row.memory_gib - 1,
        fits=result["fits"],
    )


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """Mean and largest absolute step error, how many rows they are of, and the ids that were refused."""
    errors = [abs(s.step_error) for s in scores if s.step_error is not None]
    memory = [s.memory_error for s in scores if s.memory_error is not None]
    return {
        "rows": len(scores),
        "compared": len(errors),
        "mape": sum(errors) / len(errors) if errors else None,
        "max": max(errors) if errors else None,
        "memory_max": max(map(abs, memory)) if memory else None,
        "refused": [s.row.id for s in scores if s.refused],
        "said_not_to_fit": [s.row.id for s in scores if s.fits is False],
    }
