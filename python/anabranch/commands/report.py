# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch report DIR`: rewrites the HTML report of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from anabranch.commands import output
from anabranch.errors import UsageError

HELP = "rewrite the HTML report of a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this command."""
    parser.add_argument("run", type=Path, metavar="DIR", help="run folder of `anabranch train`")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Writes `report.html` into the run folder and prints its path."""
    from anabranch.train import report

    if not any((args.run / name).is_file() for name in ("metrics.jsonl", "config.json")):
        raise UsageError(f"{args.run} is not a run folder: no metrics.jsonl or config.json in it")
    path = report.write(args.run)
    print(path)
    output.write_json(args, {"run": str(args.run), "report": str(path)})
    return 0
