# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Token look-up with a gradient that is a product where the vocabulary is small."""

from __future__ import annotations

import jax


def embed(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Returns rows `tokens` i32 [B, S] of table [V, H], in the table's type."""
    with jax.named_scope("embed"):
        return table[tokens]
