# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch train`: trains a recipe, or goes on with a run."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch.commands import output
from anabranch.errors import UsageError

if TYPE_CHECKING:
    from anabranch.recipes import Recipe

HELP = "train a recipe, or resume a run"

# Variables by which MPI launchers tell a process how many there are.
_WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")


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
    print("starting JAX ...", flush=True)
    recipe, folder = _resumed(args) if args.resume else _fresh(args)
    _prepare_devices(recipe)
    if folder is not None and not args.resume:
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
    for name in _WORLD_SIZES:
        if os.environ.get(name, "1") not in ("", "1"):
            raise UsageError(
                f"{name}={os.environ[name]}: ranks in several processes are not in this version; start "
                "one process with --devices N"
            )
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps}: must be at least 1")


def _settings(args: argparse.Namespace) -> list[str]:
    seed = [] if args.seed is None else [f"train.seed={args.seed}"]
    devices = [] if args.devices is None else [f"parallel.devices={args.devices}"]
    return [*args.settings, *seed, *devices]


def _fresh(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    from anabranch import recipes
    from anabranch.train import run_folder

    recipe = recipes.override(recipes.get(args.recipe or "default"), _settings(args))
    folder = args.out or run_folder.new(recipe.name)
    if run_folder.holds_run(folder):
        raise UsageError(
            f"{folder} already holds a run; add --resume to go on with it, or choose another --out"
        )
    return recipe, folder


def _resumed(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    from anabranch import recipes
    from anabranch.train import run_folder

    folder = args.out or run_folder.newest(args.recipe)
    recipe = run_folder.read_recipe(folder)
    if args.recipe is not None and args.recipe != recipe.name:
        raise UsageError(f"{folder} is a run of recipe {recipe.name}, not {args.recipe}")
    return recipes.override(recipe, _settings(args)), folder


def _prepare_devices(recipe: "Recipe") -> None:
    from anabranch.train import ranks

    ranks.check(recipe)
    ranks.request_devices(recipe.parallel.devices)


def _check_writable(folder: Path) -> None:
    """Finds out before a minute of preparation, not after it."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".probe"
    probe.touch()
    probe.unlink()
