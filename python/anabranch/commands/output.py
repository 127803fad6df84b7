# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What commands share: `--json FILE`, tables of names and values, and the line that a failure leaves."""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from anabranch.errors import RunError, UsageError

_INTERRUPTED = 130


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


def complain(error: BaseException) -> int:
    """Prints the one line that a failed command leaves, and returns its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return _complain("interrupted", _INTERRUPTED)
    if isinstance(error, UsageError):
        return _complain(str(error), 2)
    return _complain(_cause(error), getattr(error, "exit_code", 1))


def _cause(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, RunError):
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return text or "out of memory"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _complain(text: str, code: int) -> int:
    print(f"anabranch: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return code
