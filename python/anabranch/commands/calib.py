# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch calib`: how far the planner is from measured steps, misses included."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.commands import output
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from anabranch.planner.calibration_rows import Score

HELP = "compare the planner with measured steps (rows.csv): MAPE, largest error, misses"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--rows", type=Path, metavar="ROWS.csv",
                        help="measured steps; without it the published ones that ship")  # fmt: skip
    parser.add_argument("--hold-out", action="store_true", dest="hold_out",
                        help="only rows that no parameter was fitted to")  # fmt: skip
    parser.add_argument("--fit", type=output.writable, metavar="FILE",
                        help="fit efficiencies to the rows that are not held out, write FILE")  # fmt: skip
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch.planner import calibration, calibration_rows

    rows = calibration_rows.read(args.rows) if args.rows else calibration_rows.published()
    if args.fit:
        return _fit(args, rows)
    fitted = {row for fit in calibration.shipped()[0] for row in fit.rows}
    own = args.rows is not None
    if args.hold_out:
        # Rows of a person's own file took no part in a fit, whatever they are called.
        kept = [row for row in rows if row.id in calibration_rows.held_out()]
        unknown = [row for row in rows if row.id not in fitted] if own else []
        rows = [row for row in rows if row in kept or row in unknown]
        if not rows:
            raise UsageError("--hold-out: every row of the file was fitted to")
    scores = [calibration_rows.score(row) for row in rows]
    facts = calibration_rows.summary(scores)
    print(output.table([("row", _HEADER), *((s.row.id, _line(s, fitted)) for s in scores)]))
    print()
    print(output.table(_facts(facts)))
    output.write_json(
        args,
        {
            **facts,
            "held_out_only": args.hold_out,
            "scores": [{**s.to_json(), "fitted": s.row.id in fitted} for s in scores],
        },
    )
    return 0


_HEADER = "hw          step: measured s  simulated s   error   memory GiB: measured  simulated"


def _line(score: "Score", fitted: set[str]) -> str:
    row = score.row
    if score.refused:
        return f"{row.hw + ':' + str(row.count):12s} MISS: not simulated: {score.refused}"
    measured = "-" if score.measured_step_seconds is None else f"{score.measured_step_seconds:.4f}"
    error = "-" if score.step_error is None else f"{100 * score.step_error:+.1f}%"
    memory = "-" if row.memory_gib is None else f"{row.memory_gib:.1f}"
    notes = f"  {score.calibration}"
    notes += ", fitted" if row.id in fitted else ""
    notes += ", MISS: said not to fit" if score.fits is False else ""
    return (
        f"{row.hw + ':' + str(row.count):12s}{measured:>16s}"
        f"{score.predicted_step_seconds or 0:13.4f}{error:>8s}{memory:>23s}"
        f"{score.predicted_memory_gib or 0:11.1f}{notes}"
    )


def _facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    def share(value: float | None) -> str:
        return "nothing to compare" if value is None else f"{100 * value:.1f} %"

    return [
        ("rows", f"{facts['rows']}, {facts['compared']} with a step time to compare"),
        ("step MAPE", share(facts["mape"])),
        ("largest step error", share(facts["max"])),
        ("largest memory error", share(facts["memory_max"])),
        ("not simulated", ", ".join(facts["refused"]) or "none"),
        ("ran, but said not to fit", ", ".join(facts["said_not_to_fit"]) or "none"),
    ]


def _fit(args: argparse.Namespace, rows: Sequence[Any]) -> int:
    from anabranch.planner import calibration, calibration_fit, calibration_rows

    fits = calibration_fit.fit(rows)
    if not fits:
        raise UsageError("--fit: every row is held out")
    known = calibration_rows.held_out()
    held_out = [row for row in rows if row.id in known]
    scores = [
        calibration_rows.score(
            row, _parameters(calibration.choose(fits, row.hw, row.stack), row.hw)
        )
        for row in held_out
    ]
    facts = calibration_rows.summary(scores)
    document = {
        "fits": [dataclasses.asdict(fit) for fit in fits],
        "held_out": {"mape": facts["mape"], "max": facts["max"], "rows": facts["compared"]},
    }
    args.fit.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for fit in fits:
        factors = ", ".join(f"{name} x {value:g}" for name, value in fit.factors.items())
        print(f"{fit.hardware}/{fit.stack} from {', '.join(fit.rows)}: {factors}")
    print(output.table(_facts(facts)))
    output.write_json(args, document)
    return 0


def _parameters(fit: Any, hardware: str) -> dict[str, float]:
    from anabranch.planner import calibration

    return {} if fit is None else calibration.parameters(hardware, fit.factors)
