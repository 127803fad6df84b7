# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The layout of scales that the tensor cores of Blackwell GPUs read, and its inverse."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_ROWS, _COLUMNS = 128, 4


def swizzle_scale(scale: jax.Array) -> jax.Array:
    """Returns row-wise scales in tiles of 128 x 4 (cuBLAS, "1D block scaling factors layout").

    Inside a tile, row i and column j lie at byte (i mod 32) * 16 + (i div 32) * 4 + j, so that rows
    follow each other as 0, 32, 64, 96, 1, 33, ...; tiles are in row-major order. In the padded
    layout of `grouped_quantize` every group starts a new tile.

    Args:
      scale: one-byte scales [R, C] of rows quantised along the last axis. For a column-wise copy
        pass its transpose.

    Returns:
      [ceil(R / 128), ceil(C / 4), 32, 16] of the same dtype; missing scales are zero bytes.

    Raises:
      ValueError: scale is no matrix of one-byte elements.
    """
    if scale.ndim != 2 or scale.dtype.itemsize != 1:
        raise ValueError(
            f"swizzle_scale: scale {scale.dtype.name}{[*scale.shape]}; must be [R, C] of one byte"
        )
    codes = jax.lax.bitcast_convert_type(scale, jnp.uint8)
    rows, columns = -scale.shape[0] % _ROWS, -scale.shape[1] % _COLUMNS
    codes = jnp.pad(codes, ((0, rows), (0, columns)))
    tiles = codes.reshape(codes.shape[0] // _ROWS, 4, 32, codes.shape[1] // _COLUMNS, _COLUMNS)
    tiles = tiles.transpose(0, 3, 2, 1, 4).reshape(tiles.shape[0], tiles.shape[3], 32, 16)
    return jax.lax.bitcast_convert_type(tiles, scale.dtype)


def unswizzle_scale(swizzled: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Returns the scales [R, C] = `shape` that `swizzle_scale` laid out; ValueError if they cannot."""
    tiles = (-(-shape[0] // _ROWS), -(-shape[1] // _COLUMNS), 32, 16)
    if swizzled.shape != tiles:
        raise ValueError(
            f"unswizzle_scale: swizzled {[*swizzled.shape]} holds no {[*shape]}; must be {[*tiles]}"
        )
    codes = jax.lax.bitcast_convert_type(swizzled, jnp.uint8)
    codes = codes.reshape(tiles[0], tiles[1], 32, 4, _COLUMNS).transpose(0, 3, 2, 1, 4)
    codes = codes.reshape(tiles[0] * _ROWS, tiles[1] * _COLUMNS)[: shape[0], : shape[1]]
    return jax.lax.bitcast_convert_type(codes, swizzled.dtype)
