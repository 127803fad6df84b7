# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What `parallel.waves`, `parallel.capacity` and `parallel.chunks` do to a training step: nothing."""

import numpy as np
import pytest

import training
from anabranch.errors import UsageError
from anabranch.train import ranks
from test_ranks import after_steps
from training import assert_equal_trees, tiny

text = training.text


def test_waves_and_bounded_rows_train_the_same_model(text):
    one = after_steps(tiny(text), 1)
    # Two experts a rank: of four waves two have none.
    waves = tiny(text, "parallel.waves=4")
    assert_equal_trees(after_steps(waves, 4), one)
    # Room for 40 of the 64 rows that 32 tokens of each of 4 ranks bring on average, of 256 at worst.
    bounded = after_steps(tiny(text, "parallel.capacity=40", "parallel.waves=2"), 4, steps=1)
    first = after_steps(tiny(text), 1, steps=1)
    np.testing.assert_array_equal(bounded[1].cross_entropy, first[1].cross_entropy)
    np.testing.assert_array_equal(bounded[1].group_sizes, first[1].group_sizes)
    # Sums of a few hundred f32 terms, taken in parts.
    np.testing.assert_allclose(bounded[1].grad_norm, first[1].grad_norm, rtol=2.0**-14)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["parallel.capacity=7"], "parallel.capacity=7: .*must be at least 8"),
        (["parallel.chunks=2", "precision.recipe=mxfp8"], "parallel.chunks=2: go with"),
    ],
)
def test_bounds_that_cannot_be_kept_are_named(text, settings, message):
    with pytest.raises(UsageError, match=message):
        ranks.Ranks(tiny(text, "parallel.devices=4", *settings))
