# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch fit`: says whether a model's training step fits, and what takes the memory."""

import argparse

from anabranch.commands import output, planning

HELP = "say whether a training step fits in memory, tensor by tensor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    planning.add_scenario_arguments(parser)
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch.planner import present, search, simulate

    scenario = planning.scenario(args)
    chosen = "" if args.layout else "; the fastest that fits, of all"
    if not args.layout:
        scenario = search.first_that_fits(scenario)
    result = simulate.simulate(scenario, microbatch_limit=64)
    result["fits_at_zipf"] = simulate.fits_at(simulate.resolve(scenario, 64)[0])
    print(present.header(scenario, result))
    print(f"layout {present.placement(result)}{chosen if result['fits'] else ''}")
    print(present.memory(result))
    output.write_json(args, result)
    return 0
