# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The trainer learns text as plain jnp in f32 does; scripts/loss_curve.py takes more steps and seeds."""

import dataclasses

import numpy as np

import plain_model
from anabranch import recipes


def tiny():
    recipe = recipes.get("smoke")
    train = dataclasses.replace(recipe.train, steps=60, batch_size=4, learning_rate=3e-3)
    return dataclasses.replace(recipe, train=train)


def test_losses_are_those_of_plain_jnp_within_seed_noise():
    ours, plain = curves = plain_model.loss_curves(tiny(), seeds=range(3), steps=60)
    # One forward pass apart by roundings to bf16 alone: 2^-8 of a logit of some units.
    np.testing.assert_allclose(ours[:, 0], plain[:, 0], atol=0.02)
    assert plain[:, -10:].mean() < plain[:, 0].mean() - 2  # both have learnt something
    difference, _, spread = plain_model.seed_noise(curves, last=10)
    assert abs(difference) < spread, (difference, spread)
