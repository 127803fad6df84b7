# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch plan`: tries every layout of a machine and ranks them."""

import argparse
from pathlib import Path

from anabranch.commands import output, planning

HELP = "rank every way to lay a training step out on given accelerators"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    planning.add_scenario_arguments(parser, layout=False)
    parser.add_argument(
        "--objective",
        default="tokens_per_second",
        metavar="NAME",
        help="what ranks: tokens_per_second or headroom [tokens_per_second]",
    )
    parser.add_argument("--top", type=planning.count, default=10, metavar="N", help="rows to show")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with plots")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write the plot as .png or .svg")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch.planner import flags, page, plots, present, search

    scenario = planning.scenario(args)
    answer = search.plan(scenario, args.top, args.objective)
    answer["calibration"] = scenario.calibration.describe()
    best = answer["ranked"][0] if answer["ranked"] else answer["closest"]
    if best is not None:
        print(present.header(scenario, best))
    print(f"{answer['possible']} of {answer['tried']} layouts are possible")
    if answer["ranked"]:
        print(present.ranking(answer["ranked"]))
        print(f"\nflags of the first:\n{flags.maxtext(best)}")
    elif best is not None:
        print(f"nothing fits; closest is {best['layout']}:\n{present.memory(best)}")
    for reason, number in answer["refused"].items():
        print(f"refused {number}: {reason}")
    if args.plot is not None and answer["ranked"]:
        names = [result["layout"] for result in answer["ranked"]]
        plots.save(plots.time_shares(answer["ranked"], names), args.plot)
    if args.html is not None:
        title = f"{scenario.model.name} on {args.hw}"
        args.html.write_text(page.ranking(answer, title), encoding="utf-8")
    output.write_json(args, answer)
    return 0 if answer["ranked"] else 1
