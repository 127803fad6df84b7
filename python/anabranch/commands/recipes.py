# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch recipes`: lists recipes, or prints one in full."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from anabranch.commands import output

if TYPE_CHECKING:
    from anabranch.recipes import Recipe

HELP = "list recipes, or print one in full with parameter counts and FLOPs per token"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="recipe to print in full; or of precision, as mxfp8"
    )
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch import recipes
    from anabranch.recipes.precision import PrecisionConfig, describe

    if args.name is None:
        found = [recipes.get(name) for name in recipes.names()]
        rows = [(recipe.name, _line(recipe)) for recipe in found]
        print(output.table([("recipe", "   total   active  what"), *rows]))
        output.write_json(args, [summary(recipe) for recipe in found])
        return 0
    if _is_precision(args.name):
        tensors = describe(PrecisionConfig(args.name), 1)
        print(output.table(tensors))
        output.write_json(args, {"name": args.name, "tensors": dict(tensors)})
        return 0
    recipe = recipes.get(args.name)
    print(recipe.description)
    print(output.table(_counts(recipe)))
    print(
        output.table((path, repr(value)) for path, _, value in recipes.paths(recipe) if "." in path)
    )
    print(output.table([("", ""), *describe(recipe.precision, recipe.model.num_layers)]))
    output.write_json(args, {**summary(recipe), "recipe": dataclasses.asdict(recipe)})
    return 0


def _is_precision(name: str) -> bool:
    """Whether `name` is a recipe of products, as mxfp8 or nvfp4-sr, and not of a training run."""
    from anabranch.ops.quantize import get_recipe

    try:
        get_recipe(name)
    except ValueError:
        return False
    return True


def summary(recipe: "Recipe") -> dict[str, Any]:
    """Name, counts of parameters, and FLOPs to train on one token at the recipe's sequence length."""
    from anabranch import models

    return {
        "name": recipe.name,
        "description": recipe.description,
        "parameters": models.count_parameters(recipe.model)._asdict(),
        "flops_per_token": models.flops_per_token(recipe.model, recipe.train.sequence_length),
    }


def _line(recipe: "Recipe") -> str:
    counts = summary(recipe)["parameters"]
    return f"{_short(counts['total']):>8} {_short(counts['active']):>8}  {recipe.description}"


def _counts(recipe: "Recipe") -> list[tuple[str, str]]:
    facts = summary(recipe)
    counts = facts["parameters"]
    per_step = recipe.train.batch_size * recipe.train.sequence_length
    return [
        ("parameters", f"{counts['total']:,} ({_short(counts['total'])})"),
        ("active per token", f"{counts['active']:,} ({_short(counts['active'])})"),
        ("  of them look-up", f"{counts['embedding']:,}"),
        ("FLOPs per token", f"{facts['flops_per_token']:.4g} (forward and backward)"),
        ("tokens per step", f"{per_step:,}"),
        ("tokens in all", f"{per_step * recipe.train.steps:,}"),
        ("", ""),
    ]


def _short(count: int) -> str:
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.4g}{suffix}"
    return str(count)
