# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Grouped products under a recipe: fprop, dgrad and wgrad of rows with one matrix per group.

The product sees operands as bf16, which holds an element times its block's scale exactly, and sums
in f32, as a tensor core does with the elements and scales themselves. Weights stay codes until they
are packed; rows are given back as bf16. A tensor scale (NVFP4) multiplies the f32 result; it is that of
the rows of all ranks that share a group's rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops.grouped_gemm import (
    grouped_gemm,
    grouped_gemm_coded,
    grouped_gemm_dgrad,
    grouped_gemm_dgrad_coded,
    grouped_gemm_wgrad,
    grouped_gemm_wgrad_scaled,
)
from anabranch.ops.quantize.formats import FORMATS
from anabranch.ops.quantize.keys import derive_key
from anabranch.ops.quantize.operands import (
    ALONE,
    HADAMARD_ROWS,
    attributes,
    random_hadamard,
    room_for_sums,
    round_trip,
    round_trip_both,
)
from anabranch.ops.quantize.recipe import Recipe
from anabranch.ops.token_tree import TokenTree

# What is quantised in one layer's product, in the order of the rows of a probe.
OPERANDS = ("fprop_x", "fprop_w", "dgrad_dy", "dgrad_w", "wgrad_x", "wgrad_dy")


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def recipe_gemm(
    x: jax.Array,
    w: jax.Array,
    group_sizes: jax.Array,
    key: jax.Array,
    probe: jax.Array,
    dtype: Any,
    recipe: Recipe,
    tree: TokenTree = ALONE,
) -> jax.Array:
    """Returns y [M, N] in `dtype`: y[r] = Q(x[r]) @ Q(w[group of r]) with the recipe's gradients.

    x [M, K] and w [E, K, N] f32 or bf16; group_sizes i32 [E]; key i32 [4] (`key_words`), used by
    stochastic rounding. probe f32 [6, 5] or [6, 0] does not enter the result: its gradient is what
    OPERANDS and STATISTICS say, if it has 5 columns. `tree`: over whose leaves weight gradients are summed,
    and along whose axes ranks hold other rows of the same groups.
    """
    of_rows = recipe.gemm("fprop")
    rows = round_trip(x, group_sizes, of_rows.x, 1, of_rows, probe.shape[1] > 0, tree=tree)
    return _fprop(rows, w, group_sizes, probe, dtype, of_rows)[0]


def _forward(
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    key: jax.Array,
    probe: jax.Array,
    dtype: Any,
    recipe: Recipe,
    tree: TokenTree,
) -> tuple[jax.Array, Any]:
    counted, fprop, wgrad = probe.shape[1] > 0, recipe.gemm("fprop"), recipe.gemm("wgrad")
    columns = None
    if _alike(fprop, fprop.x, wgrad, wgrad.x):
        rows, columns = round_trip_both(x, sizes, fprop.x, fprop, counted)
    else:
        rows = round_trip(x, sizes, fprop.x, 1, fprop, counted, tree=tree)
    y, sums = _fprop(rows, w, sizes, probe, dtype, fprop)
    # What wgrad makes of x instead of x itself, of the same size, where it exists already.
    kept = jnp.zeros((0, 0), x.dtype) if columns is not None else x
    return y, (kept, columns, w, sizes, key, sums)


def _fprop(
    rows: tuple[jax.Array, ...],
    w: jax.Array,
    sizes: jax.Array,
    probe: jax.Array,
    dtype: Any,
    recipe: Recipe,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    values, scale, sums = rows
    multiply, w_scale, w_sums = _weights(w, 0, recipe, probe.shape[1] > 0)
    y = _rescaled(
        recipe, sizes, scale * w_scale, dtype, lambda computed: multiply(values, sizes, computed)
    )
    return y, (sums, w_sums)


def _alike(rows: Recipe, format: str, columns: Recipe, other: str) -> bool:
    """Whether an operand's copy along rows and the one of wgrad may come of one reading."""
    if format != other or format == "bf16" or columns.hadamard:
        return False
    return rows.scale_mode == columns.scale_mode and not FORMATS[format].has_tensor_scale


def _backward(dtype: Any, recipe: Recipe, tree: TokenTree, kept: Any, dy: jax.Array) -> Any:
    x, x_columns, w, sizes, key, sums = kept
    counted, dgrad, wgrad = sums[0].shape[0] > 0, recipe.gemm("dgrad"), recipe.gemm("wgrad")
    drawn = dgrad.stochastic_gradients or wgrad.stochastic_gradients
    dy_columns = None
    if not drawn and _alike(dgrad, dgrad.dy, wgrad, wgrad.dy):
        dy_rows, dy_columns = round_trip_both(dy, sizes, dgrad.dy, dgrad, counted)
    else:
        draws = _subkey(key if dgrad.stochastic_gradients else None, 0)
        dy_rows = round_trip(dy, sizes, dgrad.dy, 1, dgrad, counted, draws, tree)
    dx, sums_dgrad = _dgrad(w, sizes, dy_rows, x.dtype, dgrad, counted)
    dw, sums_wgrad = _wgrad((x, x_columns), (dy, dy_columns), sizes, key, wgrad, counted, tree)
    return dx, dw.astype(w.dtype), None, None, jnp.stack([*sums, *sums_dgrad, *sums_wgrad])


def _dgrad(
    w: jax.Array,
    sizes: jax.Array,
    dy: tuple[jax.Array, ...],
    dtype: Any,
    recipe: Recipe,
    counted: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    values, scale, dy_sums = dy
    multiply, w_scale, w_sums = _weights(w, 1, recipe, counted)
    dx = _rescaled(
        recipe, sizes, scale * w_scale, dtype, lambda computed: multiply(values, sizes, computed)
    )
    return dx, (dy_sums, w_sums)


def _wgrad(
    x: tuple[jax.Array, Any],
    dy: tuple[jax.Array, Any],
    sizes: jax.Array,
    key: jax.Array,
    recipe: Recipe,
    counted: bool,
    tree: TokenTree,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Of (rows, their copy along tokens or None): what has no copy is quantised here."""
    stochastic = key if recipe.stochastic_gradients else None
    tokens = sizes
    if recipe.hadamard:
        tokens = -(-sizes // HADAMARD_ROWS) * HADAMARD_ROWS

    def columns(
        operand: tuple[jax.Array, Any], format: str, key: jax.Array | None
    ) -> tuple[jax.Array, ...]:
        rows, copy = operand
        if copy is not None:
            return copy
        if recipe.hadamard:
            rows = random_hadamard(rows, sizes)
        return round_trip(rows, tokens, format, 0, recipe, counted, key, tree)

    x_values, x_scale, x_sums = columns(x, recipe.x, None)
    dy_values, dy_scale, dy_sums = columns(dy, recipe.dy, _subkey(stochastic, 1))
    rows = (x_values, dy_values, tokens)
    if recipe.has_tensor_scale:
        dw = grouped_gemm_wgrad_scaled(*rows, x_scale * dy_scale, tree.leaves)
    else:
        dw = grouped_gemm_wgrad(*rows, jnp.float32, "bfloat16", tree.leaves)
    return dw, (x_sums, dy_sums)


recipe_gemm.defvjp(_forward, _backward)


def _subkey(key: jax.Array | None, copy: int) -> jax.Array | None:
    """The draws of one copy: two copies of dy must not round together."""
    if key is None:
        return None
    words = jax.lax.bitcast_convert_type(derive_key(key, copy), jnp.int32)
    return jnp.concatenate([words, key[2:]])


def _rescaled(
    recipe: Recipe, sizes: jax.Array, scale: jax.Array, dtype: Any, run: Any
) -> jax.Array:
    """`run(dtype)`, or its f32 rows times the scale of their group where there are tensor scales."""
    if not recipe.has_tensor_scale:
        return run(dtype)
    y = run(jnp.float32)
    rows = jnp.repeat(scale, sizes, total_repeat_length=y.shape[0])
    return (y * rows[:, None]).astype(dtype)


def _weights(
    w: jax.Array, axis: int, recipe: Recipe, counted: bool
) -> tuple[Callable[[jax.Array, jax.Array, Any], jax.Array], jax.Array, jax.Array]:
    """A function (rows, sizes, dtype) that multiplies with Q(w) [E, K, N] or, for axis 1, its transpose.

    Blocks lie along the axis that it contracts: 0 (K) or 1 (N). Then the tensor scales f32 [E], which
    it leaves out, and the sums of STATISTICS.
    """
    experts, rows, columns = w.shape
    if recipe.w == "bf16":
        plain = grouped_gemm if axis == 0 else grouped_gemm_dgrad
        sums = jnp.zeros(room_for_sums(counted).shape, jnp.float32)
        return lambda r, n, t: plain(r, w, n, t, "bfloat16"), jnp.ones(experts, jnp.float32), sums
    kind = FORMATS[recipe.w]
    scale_rows, scale_columns = kind.scale_counts(rows, columns, axis)
    codes, scale, tensor_scale, _, sums = _register.call(
        "quantize",
        [
            jax.ShapeDtypeStruct((experts * rows, columns), jnp.uint8),
            jax.ShapeDtypeStruct((experts * scale_rows, scale_columns), kind.scale),
            jax.ShapeDtypeStruct((experts,), jnp.float32),
            jax.ShapeDtypeStruct((experts + 1,), jnp.int32),
            room_for_sums(counted),
        ],
        w.reshape(experts * rows, columns),
        jnp.full(experts, rows, jnp.int32),
        jnp.zeros(4, jnp.int32),
        row_alignment=1,
        **attributes(recipe.w, axis, recipe, stochastic=False),
    )
    codes = codes.reshape(w.shape)
    coded = grouped_gemm_coded if axis == 0 else grouped_gemm_dgrad_coded
    return lambda r, n, t: coded(r, codes, n, scale, t, kind.code, axis), tensor_scale, sums
