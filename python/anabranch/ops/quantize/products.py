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
    return _forward(x, w, group_sizes, key, probe, dtype, recipe, tree)[0]


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
    counted, recipe = probe.shape[1] > 0, recipe.gemm("fprop")
    x_values, x_scale, x_sums = round_trip(x, sizes, recipe.x, 1, recipe, counted, tree=tree)
    multiply, w_scale, w_sums = _weights(w, 0, recipe, counted)
    y = _rescaled(
        recipe, sizes, x_scale * w_scale, dtype,
        lambda computed: multiply(x_values, sizes, computed),
    )  # fmt: skip
    return y, (x, w, sizes, key, (x_sums, w_sums))


def _backward(dtype: Any, recipe: Recipe, tree: TokenTree, kept: Any, dy: jax.Array) -> Any:
    x, w, sizes, key, sums = kept
    counted = sums[0].shape[0] > 0
    dx, sums_dgrad = _dgrad(w, sizes, key, dy, x.dtype, recipe.gemm("dgrad"), counted, tree)
    dw, sums_wgrad = _wgrad(x, sizes, key, dy, recipe.gemm("wgrad"), counted, tree)
    return dx, dw.astype(w.dtype), None, None, jnp.stack([*sums, *sums_dgrad, *sums_wgrad])


def _dgrad(
    w: jax.Array,
    sizes: jax.Array,
    key: jax.Array,
    dy: jax.Array,
    dtype: Any,
    recipe: Recipe,
    counted: bool,
    tree: TokenTree,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    stochastic = key if recipe.stochastic_gradients else None
    dy_values, dy_scale, dy_sums = round_trip(
        dy, sizes, recipe.dy, 1, recipe, counted, _subkey(stochastic, 0), tree
    )
    multiply, w_scale, w_sums = _weights(w, 1, recipe, counted)
    dx = _rescaled(
        recipe, sizes, dy_scale * w_scale, dtype,
        lambda computed: multiply(dy_values, sizes, computed),
    )  # fmt: skip
    return dx, (dy_sums, w_sums)


def _wgrad(
    x: jax.Array,
    sizes: jax.Array,
    key: jax.Array,
    dy: jax.Array,
    recipe: Recipe,
    counted: bool,
    tree: TokenTree,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    stochastic = key if recipe.stochastic_gradients else None
    tokens = sizes
    if recipe.hadamard:
        x, dy = (random_hadamard(rows, sizes) for rows in (x, dy))
        tokens = -(-sizes // HADAMARD_ROWS) * HADAMARD_ROWS
    x_values, x_scale, x_sums = round_trip(x, tokens, recipe.x, 0, recipe, counted, tree=tree)
    dy_values, dy_scale, dy_sums = round_trip(
        dy, tokens, recipe.dy, 0, recipe, counted, _subkey(stochastic, 1), tree
    )
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
