# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Top-k routing: which experts a token goes to, and with what weight."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Routing(NamedTuple):
    """The choice of a router for T tokens.

    Attributes:
      experts: i32 [T, k], distinct expert ids in descending order of their (biased) score. A
        caller may set slots to -1, which routes them nowhere.
      weights: f32 [T, k], what each chosen expert's output is multiplied by.
      scores: f32 [T, E], unbiased scores of all experts.
    """

    experts: jax.Array
    weights: jax.Array
    scores: jax.Array
