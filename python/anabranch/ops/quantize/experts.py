# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The expert rows of ``moe_ffn`` under a recipe, as products of quantised operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import _register
from anabranch._collective import AxisName
from anabranch.ops import token_tree
from anabranch.ops.expert_rows import activate_rows, weigh_rows
from anabranch.ops.quantize import scope
from anabranch.ops.quantize.products import recipe_gemm
from anabranch.ops.quantize.recipe import get_recipe
from anabranch.ops.token_tree import TokenTree


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
    products: tuple[scope.Product, ...], axis_name: AxisName, owners: np.ndarray
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
    axis_name: AxisName = (),
) -> jax.Array:
    """Returns each row's weighted result [R, H], as `moe_ffn` adds them up.

    rows [R, H] in expert order, row_weights f32 [R], weights gate, up [E, H, F] and down [E, F, H]. Experts
    are spread along `axis_name`; along other axes of the token tree ranks hold other rows of the same ones.
    """
    tree = _along_others(token_tree.current(), axis_name)

    def product(x: jax.Array, index: int, dtype: Any) -> jax.Array:
        of = products[index]
        key = of.key.at[2].set(tree.rank() * x.shape[0])  # no two groups of ranks draw alike
        given = _register.align(x, weights[index], group_sizes, key, of.probe)
        return recipe_gemm(*given, dtype, of.recipe, tree)

    gate, up = (product(rows, index, rows.dtype) for index in (0, 1))
    out = product(activate_rows(activation, gate, up), 2, jnp.float32)
    return weigh_rows(*_register.align(row_weights, out), rows.dtype)


def _along_others(tree: TokenTree, axis_name: AxisName) -> TokenTree:
    """One leaf, and the tree's axes besides those of `axis_name`."""
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    axes = tuple(axis for axis in tree.axes if axis[0] not in names)
    return TokenTree(1, axes, tree.processes)
