# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What the planner knows about its own error, one record per hardware and software stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Fitted constants and how well they predict rows that took no part in the fit.

    `parameters` are values that replace constants of the hardware file ("efficiency.gemm": 0.71).
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


def load(hardware: str, stack: str = "") -> Calibration:
    """Returns the calibration of `hardware` ("gb200") under `stack`, "" for the newest known one."""
    return Calibration(id=f"{hardware}/uncalibrated", stack=stack or "none")
