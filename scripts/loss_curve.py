# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Trains `smoke` on Python's own sources twice per seed, by the engine and by plain jnp in f32, and compares.

Prints the mean loss of the last steps of each seed, their mean difference, and the spread between seeds: the
figures of docs/performance.md. Run: python scripts/loss_curve.py [steps] [seeds]
"""

import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "python"))

import plain_model
from anabranch import recipes

LAST = 50


def main() -> int:
    """Prints the comparison; returns 1 when the difference exceeds the spread between seeds."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    recipe = recipes.get("smoke")
    recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, steps=steps))
    curves = plain_model.loss_curves(recipe, range(seeds), steps)
    for seed, (ours, plain) in enumerate(zip(*curves, strict=True)):
        means = ours[-LAST:].mean(), plain[-LAST:].mean()
        print(f"seed {seed}: engine {means[0]:.4f}, plain f32 {means[1]:.4f} nats per token")
    difference, error, spread = plain_model.seed_noise(curves, LAST)
    print(f"difference {difference:+.4f} +- {error:.4f}; spread between seeds {spread:.4f}")
    return int(abs(difference) > spread)


if __name__ == "__main__":
    sys.exit(main())
