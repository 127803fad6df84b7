# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The command `anabranch`: parses arguments, runs one command, turns errors into one line and an exit code.

Exit codes: 0 success, 1 failure, 2 usage error, 130 after Ctrl-C. A command is a module of `anabranch.commands` with
`HELP` (one line), `add_arguments(parser)` and `run(args) -> int`; it imports what is heavy inside `run`.
ANABRANCH_TRACEBACK=1 shows a failure's traceback.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from anabranch.commands import output
from anabranch.errors import UsageError
from anabranch.train.machine import keep_freed_memory, package_version, respect_cpu_quota

COMMANDS = (
    "doctor", "recipes", "data", "train", "eval", "generate", "report", "bench", "fit", "plan",
    "sim", "scale", "hlo", "calib",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `anabranch` with `arguments` (default: the process's) and returns its exit code."""
    try:
        args = parse(sys.argv[1:] if arguments is None else arguments)
        respect_cpu_quota()
        keep_freed_memory()
        code = args.command.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough. Python must not flush again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the promise is one line, whatever happens
        if os.environ.get("ANABRANCH_TRACEBACK") and not isinstance(error, UsageError):
            raise
        return output.complain(error)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line; `.command` of the result is the command's module."""
    parser = _Parser(
        prog="anabranch",
        description="Trains dropless mixture-of-experts language models. "
        "`anabranch COMMAND --help` explains more.",
    )
    parser.add_argument("--version", action="version", version=f"anabranch {package_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name in COMMANDS:
        module = _command(name)
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP)
        sub.set_defaults(command=module)
        module.add_arguments(sub)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices[args.command.__name__.rpartition(".")[2]].error(
            f"unrecognized arguments: {' '.join(unknown)}"
        )
    return args


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one line, and wraps help at 100 columns at most."""

    def __init__(self, **options: object) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


def _formatter(prog: str) -> argparse.HelpFormatter:
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 100
    return argparse.HelpFormatter(prog, max_help_position=28, width=min(columns, 100))


def _command(name: str) -> ModuleType:
    return importlib.import_module(f"anabranch.commands.{name}")
