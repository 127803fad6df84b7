# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The ragged plan: where each routed slot's row lies in the expert-ordered rows."""

from __future__ import annotations

from typing import NamedTuple

import jax


class RaggedPlan(NamedTuple):
    """Rows of T tokens' k slots, stably ordered by (expert, token). Plain values, no handles.

    Attributes:
      group_sizes: i32 [E], rows of each expert.
      group_offsets: i32 [E+1], first row of each expert; the last entry is the number of rows used.
      row_token: i32 [R], token of each row; -1 past ``group_offsets[E]``.
      slot_row: i32 [T, k], row of each slot; -1 for a slot that is routed nowhere.
    """

    group_sizes: jax.Array
    group_offsets: jax.Array
    row_token: jax.Array
    slot_row: jax.Array
