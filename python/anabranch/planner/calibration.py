# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What the planner knows about its own error, one record per hardware and software stack."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
import math
import re
from collections.abc import Mapping, Sequence

# Accelerators that share kernels: one without a calibration of its own takes its sister's.
ARCHITECTURES: tuple[tuple[str, ...], ...] = (
    ("h100", "h200", "h800"),
    ("b200", "b300", "gb200", "gb300"),
    ("tpu7x", "tpu_v5p"),
)
# The stack of the newest rows, which is meant where none is named.
_PREFERRED = "megatron"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Fitted constants and how well they predict rows that took no part in the fit.

    `parameters` are values that replace constants of the hardware file ("elementwise_passes": 1.4).
    Errors are shares (0.08 is 8 %) of the step time over `held_out_rows` rows; None while no row was
    held out, which every answer then says.
    """

    id: str
    stack: str
    parameters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    held_out_mape: float | None = None
    held_out_max: float | None = None
    held_out_rows: int = 0

    def describe(self) -> dict[str, object]:
        """The part of an answer that says how far to trust it."""
        return {
            "id": self.id,
            "stack": self.stack,
            "held_out_mape": self.held_out_mape,
            "held_out_max": self.held_out_max,
            "held_out_rows": self.held_out_rows,
        }


@dataclasses.dataclass(frozen=True)
class Fit:
    """One fit: factors on constants of `hardware`'s file under `stack`, and the rows it was fitted to."""

    hardware: str
    stack: str
    factors: Mapping[str, float]
    rows: tuple[str, ...]


@functools.cache
def shipped() -> tuple[tuple[Fit, ...], Mapping[str, float]]:
    """The fits that ship with Anabranch, and the error of all held-out rows: mape, max, rows."""
    file = importlib.resources.files("anabranch.planner") / "measured" / "calibrations.json"
    if not file.is_file():
        return (), {}
    document = json.loads(file.read_text(encoding="utf-8"))
    fits = tuple(
        Fit(f["hardware"], f["stack"], f["factors"], tuple(f["rows"])) for f in document["fits"]
    )
    return fits, document["held_out"]


def load(hardware: str, stack: str = "") -> Calibration:
    """Returns the calibration of `hardware` ("gb200") under `stack`, "" for the newest known one.

    Of the fits of this accelerator, else of one of its architecture, the one of the same kind of
    stack ("megatron-26.04" is of the kind "megatron") nearest in time; the mean of the architecture
    when no stack is named and none of its fits is this accelerator's; without any, the kernel
    tables of the hardware file alone. The error is that of all held-out rows, those included that
    ran on hardware or stacks of which no row was fitted.
    """
    fits, held_out = shipped()
    fit = choose(fits, hardware, stack)
    error = {
        "held_out_mape": held_out.get("mape"),
        "held_out_max": held_out.get("max"),
        "held_out_rows": int(held_out.get("rows", 0)),
    }
    if fit is None:
        return Calibration(id=f"{hardware}/kernel-tables", stack=stack or "none", **error)
    own = "" if fit.hardware == hardware else f" for {hardware}"
    return Calibration(
        id=f"{fit.hardware}/{fit.stack}{own}",
        stack=fit.stack,
        parameters=parameters(hardware, fit.factors),
        **error,
    )


def choose(fits: Sequence[Fit], hardware: str, stack: str) -> Fit | None:
    """The fit that serves `hardware` under `stack`, None if there is none."""
    kind, month = split_stack(stack)
    sisters = next((a for a in ARCHITECTURES if hardware in a), (hardware,))
    for names in ((hardware,), sisters):
        found = [f for f in fits if f.hardware in names]
        kinds = {split_stack(f.stack)[0] for f in found}
        wanted = kind or (_PREFERRED if _PREFERRED in kinds else next(iter(sorted(kinds)), ""))
        found = [f for f in found if split_stack(f.stack)[0] == wanted]
        if not found:
            continue
        if month is None and names is sisters:
            return _mean(found)
        if month is None:
            return max(found, key=lambda f: (split_stack(f.stack)[1] or 0, f.hardware))
        return min(found, key=lambda f: (abs((split_stack(f.stack)[1] or 0) - month), f.hardware))
    return None


def _mean(fits: Sequence[Fit]) -> Fit:
    """The geometric mean of fits: of an architecture when neither its member nor the stack is known."""
    names = {name for fit in fits for name in fit.factors}
    logs = {n: [math.log(fit.factors.get(n, 1.0)) for fit in fits] for n in sorted(names)}
    return Fit(
        hardware="+".join(sorted({fit.hardware for fit in fits})),
        stack=split_stack(fits[0].stack)[0],
        factors={name: math.exp(sum(values) / len(values)) for name, values in logs.items()},
        rows=tuple(row for fit in fits for row in fit.rows),
    )


def split_stack(stack: str) -> tuple[str, int | None]:
    """Kind and month of a stack: "megatron-26.04" is ("megatron", months since year 0)."""
    match = re.fullmatch(r"(.+)-(\d\d)\.(\d\d)", stack)
    if match is None:
        return stack, None
    return match[1], 12 * int(match[2]) + int(match[3])


def parameters(hardware: str, factors: Mapping[str, float]) -> dict[str, float]:
    """The constants of `hardware`'s file times `factors`."""
    from anabranch.planner import hardware as hardware_files

    constants = hardware_files.get(hardware).constants
    return {name: constants[name] * factor for name, factor in factors.items()}
