# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""From the losses of all runs to a table, a verdict and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from arms import ARMS, BARS, BASE, CONTROLS, WITHIN_SEED_NOISE

# What is compared is the mean over this share of the steps, the last.
LAST_SHARE = 0.1
SMOOTHING_STEPS = 15

Losses = Mapping[str, Mapping[int, np.ndarray]]  # by arm and seed, f64 [steps]


class Row(NamedTuple):
    """One arm. Differences are relative to bf16 with the same seed, positive where bf16 is better."""

    arm: str
    loss: float  # nats per token, mean over seeds
    sigma: float  # its standard deviation over seeds
    differences: tuple[float, ...]  # one for each seed

    @property
    def difference(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.differences))

    @property
    def error(self) -> float:
        """Its standard error; NaN for one seed."""
        count = len(self.differences)
        return float(np.std(self.differences, ddof=1) / count**0.5) if count > 1 else np.nan


def final_loss(losses: np.ndarray) -> float:
    """The mean of the last LAST_SHARE of f64 [steps], in nats; NaN if any of them is."""
    return float(np.mean(losses[-max(1, round(LAST_SHARE * len(losses))) :]))


def rows(losses: Losses) -> list[Row]:
    """A row for each arm that has runs, over the seeds that it shares with bf16."""
    base = {seed: final_loss(run) for seed, run in losses[BASE].items()}
    found = []
    for arm in (arm for arm in ARMS if arm in losses):
        final = {seed: final_loss(run) for seed, run in losses[arm].items() if seed in base}
        values = np.array(list(final.values()))
        sigma = float(values.std(ddof=1)) if len(values) > 1 else np.nan
        differences = tuple(final[seed] / base[seed] - 1 for seed in final)
        found.append(Row(arm, float(values.mean()), sigma, differences))
    return found


def checks(table: list[Row]) -> list[tuple[str, bool]]:
    """(rule with its figures, whether it holds); a NaN never passes."""
    by_arm = {row.arm: row for row in table}
    noise = by_arm[BASE].sigma / by_arm[BASE].loss
    found = []
    for arm, bar in BARS.items():
        if arm not in by_arm:
            continue
        noisy = arm in WITHIN_SEED_NOISE
        allowed = max(bar, 2 * noise) if noisy and np.isfinite(noise) else bar
        off = by_arm[arm].difference
        holds = abs(off) <= allowed if noisy else off <= allowed
        name = f"max({bar:.2%}, 2 sigma = {2 * noise:.2%})" if noisy else f"{bar:.1%}"
        found.append((f"{arm} within {name} of bf16: {off:+.2%}", bool(holds)))
    for control in CONTROLS["nvfp4"]:
        if control in by_arm and "nvfp4" in by_arm:
            ours, theirs = by_arm["nvfp4"].loss, by_arm[control].loss
            text = f"nvfp4 not worse than {control}: {ours:.4f} against {theirs:.4f}"
            found.append((text, bool(ours <= theirs)))
    return found


def markdown(table: list[Row], facts: Mapping[str, Any]) -> str:
    """The results page."""
    lines = [
        "# Training under each recipe, beside bf16",
        "",
        "`python bench/convergence/convergence.py`. `default` made small: "
        + ", ".join(f"`{setting}`" for setting in facts["settings"])
        + ". "
        f"Every arm reads the same batches with the same seed; seeds {facts['seeds']}. Loss: mean over "
        f"the last {LAST_SHARE:.0%} of {facts['steps']} steps, nats per token; sigma over seeds; the "
        "difference is to bf16 of the same seed, with its standard error.",
        "",
        f"Commit {facts['commit']}, {facts['isa']}, jax {facts['jax']}.",
        "",
        "| recipe | loss | sigma | difference | error | each seed |",
        "|---|---|---|---|---|---|",
    ]
    for row in table:
        each = " ".join(f"{x:+.2%}" for x in row.differences)
        lines.append(
            f"| `{row.arm}` | {row.loss:.4f} | {row.sigma:.4f} | {row.difference:+.2%} | "
            f"{row.error:.2%} | {each} |"
        )
    lines += ["", "| rule | holds |", "|---|---|"]
    lines += [f"| {text} | {'yes' if holds else '**no**'} |" for text, holds in checks(table)]
    return "\n".join(lines) + "\n"


def plot(losses: Losses, path: Path) -> None:
    """Writes an SVG: the loss, and each arm's excess over bf16, smoothed, mean over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "anabranch"  # the same losses give the same file
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True)
    base = {seed: _smoothed(run) for seed, run in losses[BASE].items()}
    for arm in (arm for arm in ARMS if arm in losses):
        runs = {seed: _smoothed(run) for seed, run in losses[arm].items() if seed in base}
        steps = np.arange(len(next(iter(runs.values())))) + SMOOTHING_STEPS
        style = "--" if arm in (*CONTROLS["mxfp8"], *CONTROLS["nvfp4"]) else "-"
        excess = np.mean([100 * (run / base[seed] - 1) for seed, run in runs.items()], axis=0)
        above.plot(steps, np.mean(list(runs.values()), axis=0), style, lw=1.2, label=arm)
        below.plot(steps, excess, style, lw=1.2)
    above.set_ylabel("loss, nats per token")
    above.legend(frameon=False, ncols=2, fontsize="small")
    below.axhline(0, color="black", lw=0.5)
    below.set_ylabel("above bf16 of the same seed, %")
    below.set_xlabel(f"step (mean of {SMOOTHING_STEPS} steps and of the seeds)")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _smoothed(losses: np.ndarray) -> np.ndarray:
    width = min(SMOOTHING_STEPS, len(losses))
    return np.convolve(losses, np.full(width, 1 / width), mode="valid")
