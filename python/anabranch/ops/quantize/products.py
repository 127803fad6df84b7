# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Grouped products under a recipe: fprop, dgrad and wgrad of rows with one matrix per group.

The product sees operands as bf16, which holds an element times its block's scale exactly, and sums
in f32, as a tensor core does with the elements and scales themselves. Weights stay codes until they
are packed; rows are given back as bf16. A tensor scale (NVFP4) multiplies the f32 result.
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
)
from anabranch.ops.quantize.formats import FORMATS, SCALE_MODES
from anabranch.ops.quantize.keys import derive_key
from anabranch.ops.quantize.recipe import Recipe

# What is quantised in one layer's product, in the order of the rows of a probe.
OPERANDS = ("fprop_x", "fprop_w", "dgrad_dy", "dgrad_w", "wgrad_x", "wgrad_dy")
# Sums over the elements of each, in the order of a probe's columns.
STATISTICS = ("elements", "saturated", "flushed", "signal", "noise")
_HADAMARD_ROWS = 16


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def recipe_gemm(
    x: jax.Array,
    w: jax.Array,
    group_sizes: jax.Array,
    key: jax.Array,
    probe: jax.Array,
    dtype: Any,
    recipe: Recipe,
    leaves: int = 1,
) -> jax.Array:
    """Returns y [M, N] in `dtype`: y[r] = Q(x[r]) @ Q(w[group of r]) with the recipe's gradients.

    x [M, K] and w [E, K, N] f32 or bf16; group_sizes i32 [E]; key i32 [4] (`key_words`), used by
    stochastic rounding; `leaves` as in `grouped_gemm`. probe f32 [6, 5] or [6, 0] does not enter
    the result: its gradient is what OPERANDS and STATISTICS say, if it has 5 columns.
    """
    return _forward(x, w, group_sizes, key, probe, dtype, recipe, leaves)[0]


def _forward(
    x: jax.Array,
    w: jax.Array,
    sizes: jax.Array,
    key: jax.Array,
    probe: jax.Array,
    dtype: Any,
    recipe: Recipe,
    leaves: int,
) -> tuple[jax.Array, Any]:
    counted, recipe = probe.shape[1] > 0, recipe.gemm("fprop")
    x_values, x_scale, x_sums = round_trip(x, sizes, recipe.x, 1, recipe, counted)
    multiply, w_scale, w_sums = _weights(w, 0, recipe, counted)
    y = _rescaled(
        recipe, sizes, x_scale * w_scale, dtype,
        lambda computed: multiply(x_values, sizes, computed),
    )  # fmt: skip
    return y, (x, w, sizes, key, (x_sums, w_sums))


def _backward(dtype: Any, recipe: Recipe, leaves: int, kept: Any, dy: jax.Array) -> Any:
    x, w, sizes, key, sums = kept
    counted = sums[0].shape[0] > 0
    dx, sums_dgrad = _dgrad(w, sizes, key, dy, x.dtype, recipe.gemm("dgrad"), counted)
    dw, sums_wgrad = _wgrad(x, sizes, key, dy, recipe.gemm("wgrad"), counted, leaves)
    return dx, dw.astype(w.dtype), None, None, jnp.stack([*sums, *sums_dgrad, *sums_wgrad])


def _dgrad(
    w: jax.Array,
    sizes: jax.Array,
    key: jax.Array,
    dy: jax.Array,
    dtype: Any,
    recipe: Recipe,
    counted: bool,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    stochastic = key if recipe.stochastic_gradients else None
    dy_values, dy_scale, dy_sums = round_trip(
        dy, sizes, recipe.dy, 1, recipe, counted, _subkey(stochastic, 0)
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
    leaves: int,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    stochastic = key if recipe.stochastic_gradients else None
    tokens = sizes
    if recipe.hadamard:
        x, dy = (random_hadamard(rows, sizes) for rows in (x, dy))
        tokens = -(-sizes // _HADAMARD_ROWS) * _HADAMARD_ROWS
    x_values, x_scale, x_sums = round_trip(x, tokens, recipe.x, 0, recipe, counted)
    dy_values, dy_scale, dy_sums = round_trip(
        dy, tokens, recipe.dy, 0, recipe, counted, _subkey(stochastic, 1)
    )
    dw = grouped_gemm_wgrad(x_values, dy_values, tokens, jnp.float32, "bfloat16", leaves)
    if recipe.has_tensor_scale:
        dw = dw * (x_scale * dy_scale)[:, None, None]
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
        sums = jnp.zeros(_room_for_sums(counted).shape, jnp.float32)
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
            _room_for_sums(counted),
        ],
        w.reshape(experts * rows, columns),
        jnp.full(experts, rows, jnp.int32),
        jnp.zeros(4, jnp.int32),
        row_alignment=1,
        **_attributes(recipe.w, axis, recipe, stochastic=False),
    )
    codes = codes.reshape(w.shape)
    coded = grouped_gemm_coded if axis == 0 else grouped_gemm_dgrad_coded
    return lambda r, n, t: coded(r, codes, n, scale, t, kind.code, axis), tensor_scale, sums


def _room_for_sums(counted: bool) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((len(STATISTICS) if counted else 0,), jnp.float32)


def _attributes(format: str, axis: int, recipe: Recipe, *, stochastic: bool) -> dict[str, Any]:
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
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Quantises rows x [M, N] by groups and gives them back: what a product sees.

    Blocks lie along axis 1 (of a row) or 0 (of a group's tokens). With a key, i32 [4], rounding is
    stochastic. Returns bf16 [M, N] without tensor scales, those f32 [G], and the sums of
    STATISTICS f32 [5], or [0] unless counted: 0 for "bf16", where nothing is quantised.
    """
    if format == "bf16":
        sums = jnp.zeros(len(STATISTICS) if counted else 0, jnp.float32)
        return x.astype(jnp.bfloat16), jnp.ones(sizes.shape, jnp.float32), sums
    return _register.call(
        "quantize_dequantize",
        [
            jax.ShapeDtypeStruct(x.shape, jnp.bfloat16),
            jax.ShapeDtypeStruct(sizes.shape, jnp.float32),
            _room_for_sums(counted),
        ],
        x,
        sizes,
        jnp.zeros(4, jnp.int32) if key is None else key,
        **_attributes(format, axis, recipe, stochastic=key is not None),
    )


def random_hadamard(x: jax.Array, sizes: jax.Array) -> jax.Array:
    """16 x 16 random Hadamard transform along each group's tokens, bf16, groups padded to 16 rows."""
    most = x.shape[0] + sizes.shape[0] * (_HADAMARD_ROWS - 1)
    return _register.call(
        "random_hadamard",
        jax.ShapeDtypeStruct((most // _HADAMARD_ROWS * _HADAMARD_ROWS, x.shape[1]), jnp.bfloat16),
        x,
        sizes,
        row_alignment=_HADAMARD_ROWS,
    )
