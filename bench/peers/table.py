# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Joins the samples of a comparison to one table, in markdown and as JSON."""

from __future__ import annotations

import statistics
from typing import Any

from catalogue import BARS, MEMORY_BAR, PEERS, Bar

BUSY_SHARE = 0.05  # of one core used by others while a sample was taken
MEMORY_ROW = "maxtext-capacity1.0-bf16-2048"
Sample = dict[str, Any]


def rows(samples: list[Sample]) -> list[dict[str, Any]]:
    """One row for each peer that was measured, in the catalogue's order.

    `samples`: results of workers, each with `peer`, `pair`, `tokens_per_step`, `step_seconds`, `peak_rss_bytes`
    and `busy_neighbour_cores`. Samples of a busy machine are left out where the peer has idle ones. Ratios are
    throughput, ours by theirs, within a pair (measured one after the other); the row has the median pair's.
    """
    found = []
    for name, peer in PEERS.items():
        mine = [sample for sample in samples if sample["peer"] == name]
        if not mine:
            continue
        kept = [sample for sample in mine if is_idle(sample)] or mine
        seconds = [s for sample in kept for s in sample["step_seconds"]]
        median = statistics.median(seconds)
        tokens = kept[0]["tokens_per_step"]
        found.append(
            {
                "name": name,
                "what": peer.what,
                "kind": peer.kind,
                "dtype": peer.dtype,
                "dropless": peer.dropless,
                "family": peer.family,
                "tokens_per_step": tokens,
                "steps": len(seconds),
                "seconds": median,
                "spread": spread(seconds),
                "tokens_per_second": tokens / median,
                "peak_rss_bytes": max(sample["peak_rss_bytes"] for sample in kept),
                "busy_neighbour_cores": max(s["busy_neighbour_cores"] for s in kept),
                "idle": all(is_idle(sample) for sample in kept),
                "times_ours": _ratios(peer.ours, kept, samples),
                "times_like": _ratios(peer.like, kept, samples),
                "like": peer.like,
                "parameters": kept[0].get("parameters"),
                "first_loss": kept[0]["losses"][0],
                "last_loss": kept[0]["losses"][-1],
                "max_error": kept[0].get("max_error"),
                "versions": kept[0]["versions"],
                "repeat": f"python bench/peers/run.py compare --peers {name}",
            }
        )
    return found


def is_idle(sample: Sample) -> bool:
    """Whether other processes left the cores alone while the sample was taken."""
    return sample["busy_neighbour_cores"] < BUSY_SHARE


def spread(seconds: list[float]) -> float:
    """(third - first quartile) / median; the whole range instead of the quartiles below four values."""
    middle = statistics.median(seconds)
    if len(seconds) < 4:
        return (max(seconds) - min(seconds)) / middle
    low, _, high = statistics.quantiles(seconds, n=4)
    return (high - low) / middle


def _ratios(ours: str, theirs: list[Sample], samples: list[Sample]) -> dict[str, float] | None:
    """How many times faster ours was in each pair: median, least, most and their number."""
    ratios = []
    for sample in theirs:
        partners = [s for s in samples if s["peer"] == ours and s["pair"] == sample["pair"]]
        partners = [s for s in partners if is_idle(s)] or partners
        if partners:
            own = statistics.median(t for s in partners for t in s["step_seconds"])
            ratios.append(statistics.median(sample["step_seconds"]) / own)
    if not ratios:
        return None
    middle = statistics.median(ratios)
    return {"median": middle, "least": min(ratios), "most": max(ratios), "pairs": len(ratios)}


def bars(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was aimed at: for each bar the row that decides it, its ratio, and whether it was reached."""
    return [judged for bar in BARS if (judged := _judge(bar, table))] + _judge_memory(table)


def _judge(bar: Bar, table: list[dict[str, Any]]) -> dict[str, Any] | None:
    chosen = [row for row in table if row["family"] in bar.families and row["times_ours"]]
    if not chosen:
        return None
    # The row that ours leads by least decides: their fastest at equal work per step.
    row = min(chosen, key=lambda row: row["times_ours"]["median"])
    ratio = row["times_ours"]["median"]
    return {
        "what": bar.what,
        "aim": f">= {bar.ratio:g}x",
        "measured": ratio,
        "unit": "x",
        "row": row["name"],
        "reached": ratio >= bar.ratio,
    }


def _judge_memory(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_name = {row["name"]: row for row in table}
    ours, theirs = by_name.get("ours-bf16-2048"), by_name.get(MEMORY_ROW)
    if not ours or not theirs:
        return []
    share = ours["peak_rss_bytes"] / theirs["peak_rss_bytes"]
    return [
        {
            "what": "Resident at a step's peak, ours by MaxText's at 2,048 tokens",
            "aim": f"<= {MEMORY_BAR:g}",
            "measured": share,
            "unit": "",
            "row": MEMORY_ROW,
            "reached": share <= MEMORY_BAR,
        }
    ]


def markdown(table: list[dict[str, Any]], flops_per_token: float, peak_gflops: float) -> str:
    """The tables as they stand in the documentation; FLOPs count causal attention at half."""
    lines = [
        "| row | type | tokens/step | drops | s/step | spread | tokens/s | of peak | GB | ours, same type | ours |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in table if row["kind"] == "step"):
        share = row["tokens_per_second"] * flops_per_token * 1e-9 / peak_gflops
        lines.append(
            f"| {row['what']}{'' if row['idle'] else ' (machine not idle)'} | {row['dtype']} "
            f"| {row['tokens_per_step']:,} | {'no' if row['dropless'] else 'yes'} | {row['seconds']:.2f} "
            f"| {row['spread']:.0%} | {row['tokens_per_second']:,.0f} | {share:.3f} "
            f"| {row['peak_rss_bytes'] * 1e-9:.1f} | {_times(row['times_like'])} | {_times(row['times_ours'])} |"
        )
    lines += [
        "",
        "| routed layer | rows | ms | spread | GFLOP/s | of peak | ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in table if row["kind"] == "ffn"):
        shape = PEERS[row["name"]].options
        gflops = 18e-9 * shape["T"] * shape["k"] * shape["H"] * shape["F"] / row["seconds"]
        lines.append(
            f"| {row['what']} | {shape['T'] * shape['k']:,} | {row['seconds'] * 1e3:,.0f} | {row['spread']:.0%} "
            f"| {gflops:.0f} | {gflops / peak_gflops:.2f} | {_times(row['times_ours'])} |"
        )
    lines += ["", "| aim | at | measured | decided by | reached |", "|---|---|---|---|---|"]
    lines += [
        f"| {bar['what']} | {bar['aim']} | {bar['measured']:.2f}{bar['unit']} | `{bar['row']}` "
        f"| {'yes' if bar['reached'] else 'no'} |"
        for bar in bars(table)
    ]
    return "\n".join(lines) + "\n"


def _times(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return ""
    digits = 1 if ratio["median"] < 10 else 0
    middle = f"{ratio['median']:.{digits}f}x"
    if ratio["pairs"] == 1:
        return middle
    return f"{middle} ({ratio['least']:.{digits}f}-{ratio['most']:.{digits}f})"
