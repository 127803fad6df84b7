# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch hlo`: the time line of a compiled step, what it leaves exposed, and what would change it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anabranch.commands import output
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from anabranch.planner.hardware import Hardware

HELP = "time line of a compiled step (HLO text), exposed collectives, a profile for XLA"
_ROWS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("file", metavar="STEP.hlo.txt", type=Path, help="compiled.as_text()")
    parser.add_argument("--hw", required=True, metavar="NAME:COUNT", help="h100:64, gb200:256, ...")
    parser.add_argument("--what-if", default="", metavar="LIST", dest="what_if",
                        help="nic=2x,sm=16,overlap=off,limit=2,multi_stream=on,schedule=xla")  # fmt: skip
    parser.add_argument("--emit-pgle", type=output.writable, metavar="FILE", dest="profile",
                        help="write our costs as a profile for XLA's scheduler")  # fmt: skip
    parser.add_argument("--trace", type=output.writable, metavar="FILE", help="Perfetto time line")
    parser.add_argument("--stack", default="", metavar="NAME", help="calibration's software stack")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch.planner import hardware, hlo

    kind, count = hardware.parse(args.hw)
    text = _read(args.file)
    kind, known = hlo.calibrated(kind, args.stack)
    base = hlo.Options()
    given = hlo.analyze(text, kind, count, base, events=bool(args.trace and not args.what_if))
    rows = {"as given": given} | _alternatives(text, kind, count)
    shown = given
    if args.what_if:
        changed, options = hlo.what_if(kind, base, args.what_if)
        shown = hlo.analyze(text, changed, count, options, events=bool(args.trace))
        rows[args.what_if] = shown
    print(f"{shown['module']}: {args.hw}, calibration {known['id']}, simulated")
    print(output.table([("order", "   seconds  exposed EP      DP      PP  copies"),
                        *((name, _line(row)) for name, row in rows.items())]))  # fmt: skip
    print()
    print(output.table(_operations(shown)))
    for note in _notes(shown):
        print(f"note: {note}")
    if args.trace:
        args.trace.write_text(hlo.perfetto(shown.pop("events"), shown), encoding="utf-8")
    if args.profile:
        args.profile.write_text(hlo.profile(text, kind, count), encoding="utf-8")
        print(f"XLA_FLAGS=--xla_gpu_pgle_profile_file_or_directory_path={args.profile}")
    summary = {name: {k: row[k] for k in ("seconds", "streams")} for name, row in rows.items()}
    shown.pop("order")
    output.write_json(args, {**shown, "hardware": args.hw, "calibration": known, "orders": summary})
    return 0


def _read(path: Path) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if b"\0" in text[:4096]:
        raise UsageError(f"{path}: not text; save compiled.as_text(), not a serialised module")
    return text


def _alternatives(text: bytes, kind: "Hardware", count: int) -> dict[str, dict[str, Any]]:
    """The same step under XLA's rules with our costs, and without any overlap."""
    from anabranch.planner import hlo

    choices: dict[str, hlo.Options] = {
        "no overlap": hlo.Options(overlap=False),
        "XLA, one in flight": hlo.Options(schedule="xla"),
        "XLA, two streams": hlo.Options(schedule="xla", overlap_limit=2, multi_stream=True),
        "XLA, scale-up apart": hlo.Options(schedule="xla", scale_up_limit=1, multi_stream=True),
    }
    return {name: hlo.analyze(text, kind, count, option) for name, option in choices.items()}


def _line(row: dict[str, Any]) -> str:
    exposed = {name: stream["exposed"] for name, stream in row["streams"].items()}
    copies = exposed["h2d"] + exposed["d2h"] + exposed["async"]
    shares = (exposed["ep"], exposed["dp"], exposed["pp"], copies)
    total = row["seconds"] or 1.0
    cells = "".join(f"{100 * share / total:7.1f}%" for share in shares)
    return f"{row['seconds']:10.6f}     {cells}"


def _operations(row: dict[str, Any]) -> list[tuple[str, str]]:
    header = ("exposed operation", "   exposed s      busy s  times        MB  over")
    found = [
        (
            entry["name"],
            f"{entry['exposed']:12.6f}{entry['seconds']:12.6f}{entry['count']:7d}"
            f"{entry['bytes'] / 1e6:10.2f}  "
            + (f"host ({entry['stream']})" if entry["stream"] in ("h2d", "d2h")
               else "scale-up" if entry["inside_domain"] else "NIC"),
        )
        for entry in row["asynchronous"][:_ROWS]
    ]  # fmt: skip
    hidden = len(row["asynchronous"]) - len(found)
    return [header, *found, *([(f"and {hidden} more", "")] if hidden > 0 else [])]


def _notes(row: dict[str, Any]) -> list[str]:
    notes = []
    if not row["scheduled"]:
        notes.append("the text has no schedule (is_scheduled=true): its order is that of printing")
    if row["unknown_loops"]:
        notes.append(f"{row['unknown_loops']} loops say no trip count and were run once")
    if row["guessed_calls"]:
        names = ", ".join(row["guessed_calls"][:4])
        notes.append(f"priced by their bytes alone, set latency_metadata (ns) on them: {names}")
    return notes
