# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Loss on held-out text, always on the same batches."""

import functools
import itertools
import math
from typing import Any

import jax

from anabranch import data
from anabranch.recipes.recipe import Recipe
from anabranch.train.step import make_eval_step


class HeldOut:
    """The first `batches` batches of the held-out split (0: all of it), in the recipe's batch shape."""

    def __init__(self, recipe: Recipe, store: data.TokenStore, batches: int) -> None:
        """Reads nothing yet."""
        train = recipe.train
        self._recipe, self._store = recipe, store
        self._reader = data.BatchReader(store, "held_out", train.batch_size, train.sequence_length)
        self._limit = batches if batches > 0 else None

    @functools.cached_property
    def _step(self) -> Any:
        return jax.jit(make_eval_step(self._recipe))

    def evaluate(self, params: Any) -> dict[str, float]:
        """`held_out_loss` (nats/token), `held_out_bits_per_byte` and `held_out_labels` of the parameters."""
        nats, labels = 0.0, 0
        for batch in itertools.islice(self._reader.one_pass(), self._limit):
            loss, count = jax.device_get(self._step(params, batch))
            nats += float(loss) * int(count)
            labels += int(count)
        loss = nats / max(labels, 1)
        return {
            "held_out_loss": loss,
            "held_out_bits_per_byte": bits_per_byte(loss, self._store.held_out.bytes_per_token),
            "held_out_labels": labels,
        }


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
    """Bits that the model needs for one byte of text."""
    return nats_per_token / math.log(2) / bytes_per_token
