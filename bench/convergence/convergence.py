# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a small model under every low-precision recipe and compares the losses with those of bf16.

Each run (recipe, seed) leaves its losses in a file under --out; what is there already is not run again, so
a stopped experiment goes on where it was. When all are there, the table, its verdict and a plot (with
matplotlib) go to --results. Losses do not depend on the number of threads.

Run: python bench/convergence/convergence.py [--seeds N] [--set a.b=v] [--arms bf16,mxfp8] [--table]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import arms
import verdict

from anabranch import data, engine
from anabranch.train.corpus import open_corpus
from anabranch.train.step import batch_shapes, init_state, make_train_step

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Runs what is missing and writes the table; 0 even if a rule does not hold, 1 if a run is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "convergence")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--seeds", type=int, default=len(arms.SEEDS), help="how many [3]")
    parser.add_argument("--arms", default=",".join(arms.ARMS), help="comma-separated [all]")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--table", action="store_true", help="only join the runs that are there")
    args = parser.parse_args(arguments)
    chosen, settings = args.arms.split(","), tuple(args.settings)
    args.out.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(args.out / "xla"))
    missing = 0
    for seed in range(args.seeds):  # seed by seed, so that a stopped experiment has whole seeds
        for arm in chosen:
            path = args.out / f"{arm}-seed{seed}.json"
            if is_done(path, arm, seed, settings):
                continue
            missing += args.table
            if not args.table:
                train(arm, seed, settings, path)
    if missing:
        print(f"{missing} runs are missing under {args.out}")
        return 1
    write_results(args, chosen, settings)
    return 0


def is_done(path: Path, arm: str, seed: int, settings: tuple[str, ...]) -> bool:
    """Whether `path` holds the whole run that this recipe would be."""
    if not path.exists():
        return False
    found = json.loads(path.read_text())
    return found["settings"] == identity(arm, seed, settings)


def identity(arm: str, seed: int, settings: tuple[str, ...]) -> dict[str, Any]:
    """What a run's losses follow from, as JSON holds it."""
    return {"arm": arm, "seed": seed, "settings": [*arms.SETTINGS, *settings]}


_COMPILED: dict[tuple[str, tuple[str, ...]], Callable[..., Any]] = {}


def compiled(arm: str, settings: tuple[str, ...], state: Any) -> Callable[..., Any]:
    """The training step of an arm. All seeds share it: stochastic draws have the key of seed 0."""
    if (arm, settings) not in _COMPILED:
        recipe = arms.recipe(arm, 0, settings)
        step = jax.jit(make_train_step(recipe), donate_argnums=0)
        shapes = batch_shapes(recipe.train.batch_size, recipe.train.sequence_length)
        _COMPILED[arm, settings] = step.lower(state, shapes).compile()
    return _COMPILED[arm, settings]


def train(arm: str, seed: int, settings: tuple[str, ...], path: Path) -> None:
    """Trains one run and writes its losses, f64 [steps]; they are null from a non-finite one on."""
    recipe = arms.recipe(arm, seed, settings)
    store = open_corpus(recipe)
    config = recipe.train
    reader = iter(data.BatchReader(store, "train", config.batch_size, config.sequence_length, seed))
    state = jax.jit(lambda s: init_state(jax.random.key(s), recipe))(seed)
    step = compiled(arm, settings, state)
    losses, saturated, flushed, elements = [], 0.0, 0.0, 0.0
    for _ in range(config.steps):
        state, metrics = step(state, next(reader))
        losses.append(float(metrics.cross_entropy))
        sums = np.asarray(metrics.precision, np.float64).reshape(-1, 5).sum(0)
        elements, saturated, flushed = elements + sums[0], saturated + sums[1], flushed + sums[2]
    shares = {"saturated_share": saturated, "flushed_share": flushed}
    written = {
        "settings": identity(arm, seed, settings),
        **({name: value / elements for name, value in shares.items()} if elements else {}),
        "losses": [x if np.isfinite(x) else None for x in losses],
    }
    temporary = path.with_suffix(".writing")
    temporary.write_text(json.dumps(written))
    temporary.replace(path)
    print(f"{arm} seed {seed}: {verdict.final_loss(np.array(losses)):.4f}", flush=True)


def write_results(args: argparse.Namespace, chosen: list[str], settings: tuple[str, ...]) -> None:
    """Writes convergence.md, .json and, where matplotlib is installed, .svg."""
    runs = {
        arm: {
            seed: json.loads((args.out / f"{arm}-seed{seed}.json").read_text())
            for seed in range(args.seeds)
        }
        for arm in chosen
    }
    losses = {
        arm: {seed: np.array(run["losses"], np.float64) for seed, run in by_seed.items()}
        for arm, by_seed in runs.items()
    }
    facts = {
        "settings": [*arms.SETTINGS, *settings],
        "seeds": f"0 to {args.seeds - 1}",
        "steps": len(losses[arms.BASE][0]),
        "commit": _commit(),
        "isa": engine.isa(),
        "jax": jax.__version__,
    }
    args.results.mkdir(parents=True, exist_ok=True)
    page = verdict.markdown(verdict.rows(losses), facts)
    (args.results / "convergence.md").write_text(page)
    joined = {
        "facts": facts,
        "runs": [run for by_seed in runs.values() for run in by_seed.values()],
    }
    (args.results / "convergence.json").write_text(json.dumps(joined) + "\n")
    if importlib.util.find_spec("matplotlib"):
        verdict.plot(losses, args.results / "convergence.svg")
    print(page)


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
