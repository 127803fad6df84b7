# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What the planner's commands share: the arguments that name a scenario."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.planner.scenario import Scenario


def count(text: str) -> int:
    """A positive integer."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive integer")
    return int(text)


def add_scenario_arguments(parser: argparse.ArgumentParser, *, layout: bool = True) -> None:
    """Declares --model, --hw and what refines them."""
    parser.add_argument("--model", required=True, metavar="NAME|FILE", help="recipe, :path=value")
    parser.add_argument("--hw", required=True, metavar="NAME:COUNT", help="as gb200:256, h100:64")
    parser.add_argument("--recipe", default="bf16", help="bf16, fp8, mxfp8, fp8_block or nvfp4")
    if layout:
        parser.add_argument("--layout", default="", help="as pp4,vp4,ep64,recompute=full")
    parser.add_argument(
        "--options", default="", help="layout words, as overlap=off,mtp=1,graph=full"
    )
    parser.add_argument("--gbs", type=count, default=0, metavar="N", help="sequences of one step")
    parser.add_argument("--seq", type=count, default=0, metavar="N", help="tokens of a sequence")
    parser.add_argument(
        "--imbalance", default="", metavar="zipf:S|FILE", help="routing: Zipf, or metrics.jsonl"
    )
    parser.add_argument(
        "--what-if", default="", metavar="A=B,...", help="as nic=2x,sm=16,overlap=off"
    )
    parser.add_argument("--stack", default="", help="software stack of the calibration")


def scenario(args: argparse.Namespace, **changes: Any) -> "Scenario":
    """The scenario that the arguments name."""
    from anabranch.planner.scenario import make

    words = {
        "model": args.model,
        "hw": args.hw,
        "recipe": args.recipe,
        "layout_text": getattr(args, "layout", ""),
        "options": args.options,
        "batch": args.gbs,
        "sequence": args.seq,
        "imbalance": args.imbalance,
        "what_if": args.what_if,
        "stack": args.stack,
    }
    return make(**(words | changes))
