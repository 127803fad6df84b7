# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch train`: trains a recipe, or goes on with a run."""

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.commands import output
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from anabranch.recipes import Recipe

HELP = "train a recipe, or resume a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "recipe", nargs="?", metavar="RECIPE", help="see `anabranch recipes` [default]"
    )
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="PATH=VALUE",
        help="change a field of the recipe, e.g. train.batch_size=8; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, metavar="N",
        help="stop at step N, also when resuming; the schedule spans train.steps",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder [runs/RECIPE-TIME]")
    parser.add_argument(
        "--resume", action="store_true",
        help="go on from the newest good checkpoint in DIR [the newest run under runs/]",
    )  # fmt: skip
    parser.add_argument(
        "--devices", type=int, metavar="N", help="expert-parallel ranks, each a device [1]"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="seed of weights and data order")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    _check_arguments(args)
    from anabranch import _processes

    if _processes.launched() == 1:
        return _run(args)
    try:
        code = _run_as_rank(args)
        _processes.end()
        return code
    except BaseException as error:  # noqa: BLE001
        # At once: the other ranks may be waiting, and at a usual end JAX and MPI would wait for them.
        group = _processes.started()
        usage = isinstance(error, UsageError)  # the same one in all ranks: rank 0 says it
        silent = usage and group is not None and group.rank > 0
        sys.stdout.flush()
        os._exit(2 if silent else output.complain(error))


def _run_as_rank(args: argparse.Namespace) -> int:
    """Runs the command as one rank of those that mpirun has started."""
    from anabranch import _agreement as processes
    from anabranch import _processes

    rank = _processes.start().rank
    with contextlib.redirect_stdout(sys.stdout if rank == 0 else io.StringIO()):
        given = vars(args) | {"command": "train"}
        processes.require_equal({_flag(name): str(value) for name, value in given.items()})
        if args.devices not in (None, processes.count()):
            raise UsageError(
                f"--devices {args.devices}: mpirun has started {processes.count()} processes, and each is a "
                "rank"
            )
        args.devices = processes.count()
        _processes.start_processes()
        return _run(args)


def _flag(name: str) -> str:
    return {"settings": "--set", "recipe": "RECIPE"}.get(name, f"--{name}")


def _run(args: argparse.Namespace) -> int:
    print("starting JAX ...", flush=True)
    from anabranch import _agreement as processes

    recipe, folder = _resumed(args) if args.resume else _fresh(args)
    _prepare_devices(recipe)
    if folder is not None and not args.resume and processes.is_first():
        _check_writable(folder)
    steps = recipe.train.steps if args.steps is None else args.steps
    print(f"recipe {recipe.name}, {steps} steps, run folder {folder}", flush=True)
    if steps > recipe.train.steps:
        print(
            f"from step train.steps={recipe.train.steps} on the learning rate stays at its minimum"
        )

    from anabranch.train import trainer

    summary = trainer.run(recipe, folder, steps, args.resume)
    for line in describe(summary):
        print(line)
    if processes.is_first():
        output.write_json(args, summary)
    return 0


def describe(summary: dict) -> list[str]:
    """The last lines of `anabranch train`."""
    lines = [
        f"finished: {summary['step']} steps, {summary['tokens']:,} tokens, "
        f"{summary['seconds']:.0f} s, {summary['skipped_steps']} steps skipped"
    ]
    if summary.get("held_out_bits_per_byte") is not None:
        base = summary["baselines"]
        lines.append(
            f"held-out text: {summary['held_out_bits_per_byte']:.3f} bits/byte "
            f"(byte models: unigram {base['unigram']:.3f}, bigram {base['bigram']:.3f})"
        )
    lines.append(f"report: {summary['report']}")
    return lines


def _check_arguments(args: argparse.Namespace) -> None:
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps}: must be at least 1")


def _settings(args: argparse.Namespace) -> list[str]:
    seed = [] if args.seed is None else [f"train.seed={args.seed}"]
    devices = [] if args.devices is None else [f"parallel.devices={args.devices}"]
    return [*args.settings, *seed, *devices]


def _fresh(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    from anabranch import _agreement as processes
    from anabranch import recipes
    from anabranch.train import run_folder

    recipe = recipes.override(recipes.get(args.recipe or "default"), _settings(args))

    def choose() -> str:
        folder = args.out or run_folder.new(recipe.name)
        if run_folder.holds_run(folder):
            raise UsageError(
                f"{folder} already holds a run; add --resume to go on with it, or choose another --out"
            )
        return str(folder)

    return recipe, Path(processes.from_first("choosing the run folder", choose))


def _resumed(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    from anabranch import recipes
    from anabranch.train import run_folder

    folder = args.out or run_folder.newest(args.recipe)
    recipe = run_folder.read_recipe(folder)
    if args.recipe is not None and args.recipe != recipe.name:
        raise UsageError(f"{folder} is a run of recipe {recipe.name}, not {args.recipe}")
    return recipes.override(recipe, _settings(args)), folder


def _prepare_devices(recipe: "Recipe") -> None:
    from anabranch import _agreement as processes
    from anabranch.train import ranks

    ranks.check(recipe)
    if processes.count() == 1:
        ranks.request_devices(recipe.parallel.devices)


def _check_writable(folder: Path) -> None:
    """Finds out before a minute of preparation, not after it."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".probe"
    probe.touch()
    probe.unlink()
