# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch sim`: simulates one training step of one layout."""

import argparse
from pathlib import Path

from anabranch.commands import output, planning

HELP = "simulate one training step on accelerators that are not here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    planning.add_scenario_arguments(parser)
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write a time line for Perfetto")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with plots")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch.planner import page, present, simulate, trace

    scenario = planning.scenario(args)
    result = simulate.simulate(scenario, trace=args.trace is not None)
    result["fits_at_zipf"] = simulate.fits_at(simulate.resolve(scenario)[0])
    if args.trace is not None:
        args.trace.write_text(trace.perfetto(result.pop("tasks"), result), encoding="utf-8")
    print(present.header(scenario, result))
    print(present.step(result))
    print(present.memory(result))
    if args.html is not None:
        args.html.write_text(page.simulation(result), encoding="utf-8")
    output.write_json(args, result)
    return 0
