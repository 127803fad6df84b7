# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Operands of a recipe's products: quantised, and given back as the bf16 that a product sees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _collective, _register
from anabranch.ops.quantize.formats import FORMATS, SCALE_MODES
from anabranch.ops.quantize.recipe import Recipe
from anabranch.ops.token_tree import TokenTree

# Sums over the elements of an operand, in the order of a probe's columns.
STATISTICS = ("elements", "saturated", "flushed", "signal", "noise")
HADAMARD_ROWS = 16
# No other rank holds rows of the same groups.
ALONE = TokenTree()


def room_for_sums(counted: bool) -> jax.ShapeDtypeStruct:
    """Shape of the sums of STATISTICS: [0] where nothing is counted."""
    return jax.ShapeDtypeStruct((len(STATISTICS) if counted else 0,), jnp.float32)


def attributes(format: str, axis: int, recipe: Recipe, *, stochastic: bool) -> dict[str, Any]:
    """The engine's attributes of one operand."""
    mode = "rceil" if FORMATS[format].has_tensor_scale else recipe.scale_mode
    return {
        "format": FORMATS[format].code,
        "axis": axis,
        "scale_mode": SCALE_MODES.index(mode),
        "stochastic": stochastic,
        "strict": False,
        "amax_per_group": True,
    }


def round_trip(
    x: jax.Array,
    sizes: jax.Array,
    format: str,
    axis: int,
    recipe: Recipe,
    counted: bool,
    key: jax.Array | None = None,
    tree: TokenTree = ALONE,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Quantises rows x [M, N] by groups and gives them back: what a product sees.

    Blocks lie along axis 1 (of a row) or 0 (of a group's tokens). With a key, i32 [4], rounding is
    stochastic. Returns bf16 [M, N] without tensor scales, those f32 [G], of the rows of all ranks along
    `tree`'s axes, and the sums of STATISTICS f32 [5], or [0] unless counted: 0 for "bf16", where nothing is
    quantised.
    """
    if format == "bf16":
        sums = jnp.zeros(len(STATISTICS) if counted else 0, jnp.float32)
        return x.astype(jnp.bfloat16), jnp.ones(sizes.shape, jnp.float32), sums
    return _register.call(
        "quantize_dequantize",
        [
            jax.ShapeDtypeStruct(x.shape, jnp.bfloat16),
            jax.ShapeDtypeStruct(sizes.shape, jnp.float32),
            room_for_sums(counted),
        ],
        x,
        sizes,
        jnp.zeros(4, jnp.int32) if key is None else key,
        _amax(x, sizes, tree) if FORMATS[format].has_tensor_scale else jnp.zeros(0, jnp.float32),
        **attributes(format, axis, recipe, stochastic=key is not None),
    )


def round_trip_both(
    x: jax.Array, sizes: jax.Array, format: str, recipe: Recipe, counted: bool
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """`round_trip` along axis 1 and along axis 0, to nearest, from one reading of x."""
    values = jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)
    options = attributes(format, 1, recipe, stochastic=False)
    del options["stochastic"]
    row_values, column_values, scale, row_sums, column_sums = _register.call(
        "quantize_dequantize_both",
        [
            values,
            values,
            jax.ShapeDtypeStruct(sizes.shape, jnp.float32),
            room_for_sums(counted),
            room_for_sums(counted),
        ],
        x,
        sizes,
        **options,
    )
    return (row_values, scale, row_sums), (column_values, scale, column_sums)


def _amax(x: jax.Array, sizes: jax.Array, tree: TokenTree) -> jax.Array:
    """f32 [G], each group's amax over all ranks; [0] for one rank, where the engine finds it by itself."""
    if not tree.axes:
        return jnp.zeros(0, jnp.float32)
    shape = jax.ShapeDtypeStruct(sizes.shape, jnp.float32)
    return max_over_ranks(_register.call("tensor_amax", shape, x, sizes, strict=False), tree)


def random_hadamard(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """16 x 16 random Hadamard transform along each group's tokens, bf16, groups padded to 16 rows."""
    most = x.shape[0] + sizes.shape[0] * (HADAMARD_ROWS - 1)
    return _register.call(
        "random_hadamard",
        jax.ShapeDtypeStruct((most // HADAMARD_ROWS * HADAMARD_ROWS, x.shape[1]), jnp.bfloat16),
        x,
        sizes,
        row_alignment=HADAMARD_ROWS,
    )


def max_over_ranks(x: jax.Array, tree: TokenTree) -> jax.Array:
    """The largest of the ranks' f32 x, not negative and no NaN, of any shape; not differentiable.

    Compared as integers, which exist for subnormal numbers too.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    if tree.processes:
        most = jnp.max(_collective.gather(bits, tree.axis_names, processes=True), axis=0)
    else:
        most = jax.lax.pmax(bits, tree.axis_names)
    return jax.lax.bitcast_convert_type(most, jnp.float32)
