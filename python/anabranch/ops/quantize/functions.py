# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""``quantize`` and ``grouped_quantize``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops.quantize.formats import FORMATS, check
from anabranch.ops.quantize.keys import key_words
from anabranch.ops.quantize.quantized import Quantized, from_bytes, matrix, num_matrices

# Groups start at multiples of it: serves MXFP8 (32), NVFP4 (16) and FP8 blocks (128) alike, and is
# what Transformer Engine's grouped kernels ask for.
GROUP_ALIGNMENT = 128


def quantize(
    x: jax.Array,
    format: str,
    *,
    axis: int = -1,
    scale_mode: str = "rceil",
    rounding: str = "nearest",
    key: Any = None,
    infinity: str = "te",
) -> Quantized:
    """Quantises an array to a block-scaled format, bit for bit as the hardware recipes do.

    A block's scale follows from amax, its largest size: a power of two for MX and FP8 blocks, for
    NVFP4 (arXiv 2509.25149) an E4M3 number beside one f32 scale of the whole array, in Transformer
    Engine's order of roundings. A block of zeros gets the smallest scale (1 for FP8 blocks). NaN makes
    its whole block NaN.

    Args:
      x: f32 or bf16 [..., N] (f16 is widened).
      format: "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4" (OCP MX 1.0), "nvfp4", "nvfp4_16x16" (weights),
        "fp8_block_1x128", "fp8_block_128x128" (arXiv 2412.19437).
      axis: -1 or, for 2 and more dimensions, -2: the axis that blocks lie along, and that a product
        contracts over. Square blocks are the same for both. Blocks at the end may be short.
      scale_mode: of the power of two. "rceil": the smallest at least amax / largest element, so that
        nothing saturates; "floor": OCP MX 1.0's, where amax may; "even", "ceil": torchao's. FP8 blocks
        also take "float32", 1 / (448 / amax).
      rounding: "nearest" (ties to even) or "stochastic": one of the two neighbours, from Philox
        counted by row and column, so that the same key gives the same bits on any machine.
      key: a JAX PRNG key, uint32 [2], or an int, for "stochastic".
      infinity: "te": an infinity saturates and its block's scale is the largest one, as Transformer
        Engine does; "strict": it is treated as NaN.

    Returns:
      A `Quantized`.

    Raises:
      ValueError: an option, shape or dtype does not fit; the message names it.
    """
    attributes = check("quantize", format, scale_mode, rounding, key, infinity)
    x = _source("quantize", x)
    if x.ndim < 1 or axis not in (-1, -2, x.ndim - 1, x.ndim - 2) or not -x.ndim <= axis < x.ndim:
        raise ValueError(
            f"quantize: axis={axis} of x {x.dtype.name}{[*x.shape]}; must be the last axis or the "
            "one before it"
        )
    axis = axis if axis < 0 else axis - x.ndim
    return _quantize(x, key_words(key), axis, format, tuple(attributes.items()))


@functools.partial(jax.jit, static_argnames=("axis", "format", "attributes"), inline=True)
def _quantize(
    x: jax.Array, key: jax.Array, axis: int, format: str, attributes: tuple[tuple[str, Any], ...]
) -> Quantized:
    kind, source = FORMATS[format], matrix(x)
    groups = num_matrices(x.shape, format, axis)
    rows = source.shape[0] // max(groups, 1)
    scale_rows, scale_columns = kind.scale_counts(rows, x.shape[-1], axis + 2)
    data, scale, tensor_scale, _ = _call(
        source,
        jnp.full(groups, rows, jnp.int32),
        key,
        source.shape[0],
        (groups * scale_rows, scale_columns),
        format,
        {**dict(attributes), "axis": axis + 2, "amax_per_group": False, "row_alignment": 1},
    )
    lead = x.shape[:-1] if scale_rows == rows and groups == 1 else (*x.shape[:-2], scale_rows)
    return Quantized(
        data.reshape(x.shape),
        scale.reshape(*lead, scale_columns),
        tensor_scale[0] if kind.has_tensor_scale and groups else None,
        None,
        None,
        format,
        axis,
        None,
    )


def grouped_quantize(
    x: jax.Array,
    group_sizes: jax.Array,
    format: str,
    *,
    axis: int,
    scale_mode: str = "rceil",
    rounding: str = "nearest",
    key: Any = None,
    infinity: str = "te",
) -> Quantized:
    """Quantises rows in group order; no block crosses a group.

    In the result each group starts at a multiple of 128 rows; the rows between, and their scales,
    are zero: P = (M + 127 G) // 128 * 128 rows hold any sizes. A group has its own tensor scale
    (NVFP4). `dequantize()` gives the caller's rows back.

    Args:
      x: f32 or bf16 [M, N].
      group_sizes: i32 [G], >= 0, with a sum of at most M; rows past it belong to no group.
      format: as for `quantize`.
      axis: -1 (or 1): blocks along N; -2 (or 0): along a group's rows.
      scale_mode: as for `quantize`.
      rounding: as for `quantize`; draws are counted by group, row in the group, and column.
      key: as for `quantize`.
      infinity: as for `quantize`.

    Returns:
      A `Quantized` with data [P, N], scale [P, ceil(N / block)] or [P / block, N], tensor_scale [G]
      or None, group_offsets i32 [G + 1].

    Raises:
      ValueError: an option, shape or dtype does not fit; the message names it.
      jax.errors.JaxRuntimeError: a group size is negative or the sizes exceed M (ValueError when a
        cached call runs inline).
    """
    attributes = check("grouped_quantize", format, scale_mode, rounding, key, infinity)
    x, group_sizes = _source("grouped_quantize", x), jnp.asarray(group_sizes)
    given = f"x {x.dtype.name}{[*x.shape]} and group_sizes {group_sizes.dtype.name}"
    given += f"{[*group_sizes.shape]}"
    if x.ndim != 2 or group_sizes.ndim != 1 or not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise ValueError(f"grouped_quantize: {given}; must be [M, N] and integers [G]")
    if axis not in (-2, -1, 0, 1):
        raise ValueError(f"grouped_quantize: axis={axis} of {given}; must be -1 or -2")
    axis = axis if axis < 0 else axis - 2
    sizes = group_sizes.astype(jnp.int32)
    return _grouped_quantize(x, sizes, key_words(key), axis, format, tuple(attributes.items()))


@functools.partial(jax.jit, static_argnames=("axis", "format", "attributes"), inline=True)
def _grouped_quantize(
    x: jax.Array,
    sizes: jax.Array,
    key: jax.Array,
    axis: int,
    format: str,
    attributes: tuple[tuple[str, Any], ...],
) -> Quantized:
    kind = FORMATS[format]
    data_rows = padded_rows(x.shape[0], sizes.shape[0])
    data, scale, tensor_scale, offsets = _call(
        x,
        sizes,
        key,
        data_rows,
        kind.scale_counts(data_rows, x.shape[1], axis + 2),
        format,
        {
            **dict(attributes),
            "axis": axis + 2,
            "amax_per_group": True,
            "row_alignment": GROUP_ALIGNMENT,
        },
    )
    factor = tensor_scale if kind.has_tensor_scale else None
    return Quantized(data, scale, factor, offsets, sizes, format, axis, x.shape[0])


def padded_rows(num_rows: int, num_groups: int) -> int:
    """Rows that hold `num_rows` in any `num_groups` groups, each padded to GROUP_ALIGNMENT."""
    most = num_rows + num_groups * (GROUP_ALIGNMENT - 1)
    return most // GROUP_ALIGNMENT * GROUP_ALIGNMENT


def _call(
    x: jax.Array,
    sizes: jax.Array,
    key: jax.Array,
    data_rows: int,
    scale_shape: tuple[int, int],
    format: str,
    attributes: dict[str, Any],
) -> tuple[jax.Array, ...]:
    kind, groups = FORMATS[format], sizes.shape[0]
    element = jnp.uint8 if kind.element == jnp.float4_e2m1fn else kind.element
    data, scale, tensor_scale, offsets, _ = _register.call(
        "quantize",
        [
            jax.ShapeDtypeStruct((data_rows, x.shape[1]), element),
            jax.ShapeDtypeStruct(scale_shape, kind.scale),
            jax.ShapeDtypeStruct((groups,), jnp.float32),
            jax.ShapeDtypeStruct((groups + 1,), jnp.int32),
            jax.ShapeDtypeStruct((0,), jnp.float32),  # no statistics
        ],
        x,
        sizes,
        key,
        **attributes,
    )
    return from_bytes(data), scale, tensor_scale, offsets


def _source(op: str, x: Any) -> jax.Array:
    x = jnp.asarray(x)
    if x.dtype == jnp.float16:
        return x.astype(jnp.float32)
    if x.dtype not in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
        raise ValueError(
            f"{op}: x {x.dtype.name}{[*x.shape]}; must be float32, bfloat16 or float16"
        )
    return x
