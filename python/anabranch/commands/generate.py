# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch generate`: text from a trained run."""

import argparse
from pathlib import Path

from anabranch.commands import output
from anabranch.errors import UsageError

HELP = "continue a prompt with a trained run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("run", type=Path, metavar="DIR", help="run folder")
    parser.add_argument("--prompt", default="", metavar="TEXT", help="text to continue [empty]")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="tokens at most [200]")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="X", help="0 is greedy [0.8]"
    )
    parser.add_argument(
        "--top-k", type=int, default=40, metavar="K", help="sample among the K best, 0 for all [40]"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the sampling [0]")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    for name in ("tokens", "temperature", "top_k", "seed"):
        if not getattr(args, name) >= 0:
            raise UsageError(
                f"--{name.replace('_', '-')} {getattr(args, name)}: must not be negative"
            )

    from anabranch.train import run_folder
    from anabranch.train.corpus import open_corpus, warn
    from anabranch.train.generation import Generator

    recipe = run_folder.read_recipe(args.run)
    params, step = run_folder.load_params(args.run, recipe, warn)
    tokenizer = open_corpus(recipe).tokenizer
    generator = Generator(params, recipe.model, tokenizer, max(recipe.train.sequence_length, 2))
    text = generator.text(
        args.prompt, args.tokens, temperature=args.temperature, top_k=args.top_k, seed=args.seed
    )
    print(args.prompt + text)
    output.write_json(
        args, {"run": str(args.run), "step": step, "prompt": args.prompt, "text": text}
    )
    return 0
