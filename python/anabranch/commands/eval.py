# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch eval`: loss of a trained run on held-out text."""

import argparse
from pathlib import Path

from anabranch.commands import output
from anabranch.errors import UsageError

HELP = "held-out loss of a run, beside byte models of the same text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("run", type=Path, metavar="DIR", help="run folder")
    parser.add_argument(
        "--batches", type=int, metavar="N", help="held-out batches, 0 for all [those of training]"
    )
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    if args.batches is not None and args.batches < 0:
        raise UsageError(f"--batches {args.batches}: must not be negative")

    from anabranch.data.baselines import byte_model_baselines
    from anabranch.train import run_folder
    from anabranch.train.corpus import open_corpus, warn
    from anabranch.train.evaluation import HeldOut

    recipe = run_folder.read_recipe(args.run)
    params, step = run_folder.load_params(args.run, recipe, warn)
    store = open_corpus(recipe)
    batches = recipe.train.eval_batches if args.batches is None else args.batches
    result = {
        "run": str(args.run),
        "step": step,
        **HeldOut(recipe, store, batches).evaluate(params),
        "baselines": byte_model_baselines(store),
    }
    base = result["baselines"]
    rows = [
        ("step", f"{step}"),
        ("held-out labels", f"{result['held_out_labels']:,}"),
        ("loss", f"{result['held_out_loss']:.6f} nats/token"),
        ("bits per byte", f"{result['held_out_bits_per_byte']:.4f}"),
        ("unigram byte model", f"{base['unigram']:.4f} bits per byte"),
        ("bigram byte model", f"{base['bigram']:.4f} bits per byte"),
    ]
    print(output.table(rows))
    output.write_json(args, result)
    return 0
