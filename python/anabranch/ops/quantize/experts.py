# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The expert rows of ``moe_ffn`` under a recipe, as products of quantised operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import _register
from anabranch.ops import reference
from anabranch.ops.quantize import scope
from anabranch.ops.quantize.products import recipe_gemm
from anabranch.ops.quantize.recipe import get_recipe


def products_of(recipe: Any, dtype: jnp.dtype, op: str) -> tuple[scope.Product, ...] | None:
    """Keys and probes of the gate, up and down products; None for plain arithmetic.

    Without a recipe those of the enclosing layer hold. ValueError for an unknown one.
    """
    low = get_recipe(recipe, op)
    if low is not None:
        return (scope.product_of(low),) * 3
    if recipe is not None:
        return None
    found = tuple(scope.next_product(dtype) for _ in range(3))
    return None if found[0] is None else found


def on_rank(
    products: tuple[scope.Product, ...], axis_name: str, owners: np.ndarray
) -> tuple[scope.Product, ...]:
    """The products of a rank: the same draws as on one device. `owners` i32 [E], ascending, has each expert's rank."""
    first = jnp.searchsorted(jnp.asarray(owners), jax.lax.axis_index(axis_name))
    return tuple(p._replace(key=p.key.at[3].set(first.astype(jnp.int32))) for p in products)


def expert_rows(
    activation: str,
    rows: jax.Array,
    row_weights: jax.Array,
    weights: tuple[jax.Array, jax.Array, jax.Array],
    group_sizes: jax.Array,
    products: tuple[scope.Product, ...],
) -> jax.Array:
    """Returns each row's weighted result [R, H], as `moe_ffn` adds them up.

    rows [R, H] in expert order, row_weights f32 [R], weights gate, up [E, H, F] and down [E, F, H].
    """

    def product(x: jax.Array, index: int, dtype: Any) -> jax.Array:
        of = products[index]
        given = _register.align(x, weights[index], group_sizes, of.key, of.probe)
        return recipe_gemm(*given, dtype, of.recipe)

    gate = product(rows, 0, rows.dtype).astype(jnp.float32)
    up = product(rows, 1, rows.dtype).astype(jnp.float32)
    hidden = reference.gated_activation(activation, gate, up).astype(rows.dtype)
    out = product(hidden, 2, jnp.float32)
    return (row_weights[:, None] * out).astype(rows.dtype)
