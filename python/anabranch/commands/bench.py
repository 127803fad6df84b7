# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`anabranch bench`: measures kernels, layers or training steps against this machine's own limits."""

import argparse

from anabranch.commands import output

HELP = "measure kernels, the MoE layer or whole steps against this machine's limits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("suite", metavar="SUITE", help="tile, layer, step, ep or sim")
    output.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from anabranch import bench

    document = bench.run(args.suite, lambda line: print(line, flush=True))
    output.write_json(args, document)
    if not all(row["idle"] for row in document["rows"]):
        print("note: the machine was not idle; a busy neighbour lowers every figure")
    return 0
