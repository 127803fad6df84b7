# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What commands share: `--json FILE`, and tables of names and values."""

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--json FILE`."""
    parser.add_argument(
        "--json", metavar="FILE", type=writable, help="write what is printed as JSON"
    )


def writable(text: str) -> Path:
    """The path, if a file can be written there: better said before a run than after it."""
    path = Path(text)
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}")
    return path


def write_json(args: argparse.Namespace, document: Any) -> None:
    """Writes `document` to the file that `--json` names, if it was given."""
    if args.json is not None:
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Two aligned columns."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)
