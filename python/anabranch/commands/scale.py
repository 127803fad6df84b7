# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch scale`: the same layout on more and more accelerators."""

import argparse
from pathlib import Path

from anabranch.commands import output, planning

HELP = "say what a step loses from few accelerators to many"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    planning.add_scenario_arguments(parser)
    parser.add_argument("--from", dest="first", type=planning.count, required=True, metavar="N")
    parser.add_argument("--to", dest="last", type=planning.count, required=True, metavar="N")
    parser.add_argument("--jitter", type=float, default=0.01, help="deviation of a rank's speed")
    parser.add_argument("--seeds", type=planning.count, default=20, metavar="N", help="draws of it")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with plots")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write the plot as .png or .svg")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch.planner import page, plots, present, scaling

    sizes = scaling.counts(args.first, args.last)
    name = args.hw.rsplit(":", 1)[0]
    scenario = planning.scenario(args, hw=f"{name}:{args.first}")
    answer = scaling.scale(scenario, sizes, args.jitter, args.seeds)
    print(
        f"{answer['model']} {answer['recipe']} on {answer['hardware']}, {answer['layout']}, routing"
        f" {answer['imbalance']}, jitter {args.jitter:.1%}, {args.seeds} seeds"
    )
    print(present.trust(answer["calibration"]))
    print(present.scaling(answer))
    if args.plot is not None:
        plots.save(plots.scaling(answer), args.plot)
    if args.html is not None:
        args.html.write_text(page.scaling(answer), encoding="utf-8")
    output.write_json(args, answer)
    return 0
